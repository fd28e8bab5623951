/* Changes of tenants, keys, roles and sessions, each with its consequence. */
import { Ban, LogOut, Pencil, Plus, Trash2 } from 'lucide-react'
import type { components } from '@/api/schema'
import { asCli } from '@/format/command'
import { type Action, request } from '@/parts/action/action'
import { field, type FormValues } from '@/parts/action/FormAction'

type S = components['schemas']
export type Key = S['ApiKey']
export type Tenant = S['Tenant']
export type Role = S['Role']
export type BrowserSession = S['BrowserSession']

export function newKeyAction(values: FormValues, tenant: string | null): Action {
  const days = values.days as number | undefined
  const name = String(values.name ?? '')
  const role = String(values.role ?? '')
  return {
    id: 'new-key', label: 'New key', icon: Plus, title: 'New key', verb: 'Create the key',
    consequence: `A key with the role ${role || '…'}${tenant === null ? '' : ` for the tenant ${tenant}`} is created and shown once. ${days === undefined ? 'It does not expire.' : `It expires in ${days} days.`}`,
    request: request('post', '/api/v2/keys', {
      body: { name, role, ...(tenant === null ? {} : { tenant }), ...(days === undefined ? {} : { expires_in_seconds: days * 86_400 }) },
      cli: asCli('keys', 'create', name, '--role', role, ...(tenant === null ? [] : ['--tenant', tenant]), ...(days === undefined ? [] : ['--expires-days', String(days)])),
    }),
    done: 'The key is created.',
  }
}

export function revokeAction(key: Key): Action {
  return {
    id: 'revoke', label: 'Revoke', icon: Ban, danger: true, refused: key.revoked_at === null ? null : 'The key is revoked.', title: `Revoke ${key.name}`, verb: 'Revoke the key', typed: key.name,
    consequence: `Every server refuses the key from now on, and its browser sessions end with their next request. ${key.last_used_at === null ? 'It was never used.' : 'Programs that use it stop working.'} This cannot be undone.`,
    request: request('delete', '/api/v2/keys/{key_id}', { path: { key_id: key.id }, cli: asCli('keys', 'revoke', key.id) }),
    done: 'The key is revoked.',
  }
}

export function endSessionAction(session: BrowserSession): Action {
  return {
    id: 'end-session', label: 'End', icon: LogOut, danger: true, title: 'End the session', verb: 'End the session',
    consequence: session.current === true ? 'This is your own session: you have to sign in again.' : 'The browser has to sign in again with its next request.',
    request: request('delete', '/api/v2/ui/sessions/{session_id}', { path: { session_id: session.id } }),
    done: 'The session has ended.',
  }
}

const LIMITS = ['max_queued', 'max_running', 'rate_per_second', 'max_cost_usd_per_day', 'max_schedules', 'min_schedule_seconds'] as const
const LIMIT_OPTIONS: Record<(typeof LIMITS)[number], string> = {
  max_queued: '--max-queued', max_running: '--max-running', rate_per_second: '--rate', max_cost_usd_per_day: '--max-cost-per-day', max_schedules: '--max-schedules', min_schedule_seconds: '--min-schedule-seconds',
}
const LIMIT_WORDS: Record<(typeof LIMITS)[number], string> = {
  max_queued: 'Queued runs', max_running: 'Running runs', rate_per_second: 'Requests per second', max_cost_usd_per_day: 'Cost per day in US dollars', max_schedules: 'Schedules', min_schedule_seconds: 'Shortest interval of schedules in seconds',
}

export const TENANT_FIELDS = [
  ...LIMITS.map((name) => field(name, LIMIT_WORDS[name], { control: name === 'max_cost_usd_per_day' || name === 'rate_per_second' ? 'number' : 'integer', minimum: 0, hint: 'Empty: no limit.' })),
  field('on_cap', 'When the cost limit is reached', { control: 'choice', options: ['fail', 'ask'], required: true, hint: 'fail: the step fails. ask: a person is asked to raise it.' }),
  field('weight', 'Weight in fair lanes', { control: 'number', minimum: 0, required: true }),
  field('enabled', 'Enabled', { control: 'boolean' }),
]

/** The changes of a tenant as options of the command. */
function tenantWords(changed: Record<string, unknown>): string[] {
  const removed = LIMITS.filter((name) => changed[name] === null)
  return [
    ...LIMITS.flatMap((name) => (changed[name] === undefined || changed[name] === null ? [] : [LIMIT_OPTIONS[name], String(changed[name])])),
    ...(removed.length > 0 ? ['--no-limit', removed.join(',')] : []),
    ...(changed.on_cap === undefined ? [] : ['--on-cap', String(changed.on_cap)]),
    ...(changed.weight === undefined ? [] : ['--weight', String(changed.weight)]),
    ...(changed.enabled === undefined ? [] : [changed.enabled === true ? '--enable' : '--disable']),
  ]
}

export function changeTenantAction(tenant: Tenant, values: FormValues): Action {
  const body: Record<string, unknown> = { enabled: values.enabled === true, on_cap: values.on_cap, weight: values.weight }
  for (const name of LIMITS) body[name] = values[name] ?? null
  const changed = Object.fromEntries(Object.entries(body).filter(([name, value]) => value !== tenant[name as keyof Tenant]))
  const off = tenant.enabled && body.enabled === false
  return {
    id: 'change-tenant', label: 'Change', icon: Pencil, danger: off, refused: Object.keys(changed).length === 0 ? 'Nothing is changed.' : null, title: `Change ${tenant.id}`, verb: 'Save the tenant',
    consequence: `${off ? 'The tenant is disabled: its keys are refused, its waiting runs do not start. ' : ''}Limits apply at once; running runs finish. Changed: ${Object.keys(changed).join(', ') || 'nothing'}.`,
    request: request('patch', '/api/v2/tenants/{tenant_id}', { path: { tenant_id: tenant.id }, body: changed as never, cli: asCli('tenants', 'set', tenant.id, ...tenantWords(changed)) }),
    done: 'The tenant is changed.',
  }
}

export function newTenantAction(values: FormValues): Action {
  const id = String(values.id ?? '')
  const name = values.name === undefined ? undefined : String(values.name)
  return {
    id: 'new-tenant', label: 'New tenant', icon: Plus, title: 'New tenant', verb: 'Create the tenant',
    consequence: 'The tenant is created without limits. It sees nothing of other tenants; create a key for it next.',
    request: request('post', '/api/v2/tenants', { body: { id, name }, cli: asCli('tenants', 'create', id, ...(name === undefined ? [] : ['--name', name])) }),
    done: `The tenant ${id} is created.`,
  }
}

export function saveRoleAction(name: string, permissions: string[], existing: boolean): Action {
  return {
    id: 'save-role', label: existing ? 'Change' : 'New role', icon: existing ? Pencil : Plus, refused: name === '' ? 'A name is required.' : permissions.length === 0 ? 'Choose at least one permission.' : null,
    title: existing ? `Change the role ${name}` : 'New role', verb: existing ? 'Save the role' : 'Create the role',
    consequence: existing ? 'Every key with this role has exactly these permissions from its next request on.' : 'Keys can be created with this role.',
    request: request('put', '/api/v2/roles/{name}', { path: { name: name || 'NAME' }, body: { permissions }, cli: asCli('roles', 'set', name || 'NAME', ...(permissions.length === 0 ? ['PERMISSION'] : permissions)) }),
    done: 'The role is stored.',
  }
}

export function deleteRoleAction(role: Role): Action {
  return {
    id: 'delete-role', label: 'Delete', icon: Trash2, danger: true, refused: role.built_in ? 'Built-in roles cannot be deleted.' : null, title: `Delete the role ${role.name}`, verb: 'Delete the role',
    consequence: 'A role cannot be deleted while a key has it.',
    request: request('delete', '/api/v2/roles/{name}', { path: { name: role.name }, cli: asCli('roles', 'delete', role.name) }),
    done: 'The role is deleted.',
  }
}
