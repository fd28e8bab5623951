/* Keys: who has them, what they may do, when they were used. A new key is shown once. */
import { KeyRound, Plus } from 'lucide-react'
import { useState } from 'react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { visible } from '@/format/text'
import { ActionMenu } from '@/parts/action/ActionButtons'
import { field, FormAction } from '@/parts/action/FormAction'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { PagesFooter, usePages } from '@/parts/pages'
import { Panel } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Time } from '@/parts/Time'
import { ShownOnce } from '@/screens/webhooks/SecretDialog'
import { type Key, newKeyAction, revokeAction } from './accessActions'

function isOver(key: Key): boolean {
  return key.revoked_at !== null || (key.expires_at !== null && Date.parse(key.expires_at) < Date.now())
}

const COLUMNS: Column<Key>[] = [
  { id: 'name', title: 'Name', width: 160, grow: true, fixed: true, render: (key) => <span className="font-medium">{visible(key.name)}</span> },
  { id: 'state', title: 'State', width: 90, render: (key) => (key.revoked_at !== null ? <Chip tone="bad">revoked</Chip> : isOver(key) ? <Chip tone="idle">expired</Chip> : <Chip tone="ok">valid</Chip>) },
  { id: 'role', title: 'Role', width: 130, render: (key) => <span className="text-soft">{key.role}</span> },
  { id: 'tenant', title: 'Tenant', width: 110, render: (key) => <span className="text-soft">{key.tenant}</span> },
  { id: 'prefix', title: 'Key', width: 130, render: (key) => <code className="font-mono text-xs text-soft">{key.key_prefix}…</code> },
  { id: 'used', title: 'Last used', width: 104, render: (key) => (key.last_used_at === null ? <span className="text-faint">never</span> : <Time at={key.last_used_at} style="relative" />) },
  { id: 'expires', title: 'Expires', width: 104, wideOnly: true, render: (key) => (key.expires_at === null ? <span className="text-faint">never</span> : <Time at={key.expires_at} style="relative" />) },
  { id: 'by', title: 'Created by', width: 130, wideOnly: true, render: (key) => <span className="text-soft">{visible(key.created_by)}</span> },
]

export function Keys() {
  const tenant = useTenantParam()
  const { may } = useSession()
  const [shown, setShown] = useState<components['schemas']['ShownKey'] | null>(null)
  const roles = useApi('/api/v2/roles', {}, { topics: ['access'] })
  const { query, pages } = usePages('/api/v2/keys', { query: tenant }, { topics: ['access'] })
  const keys = pages.flatMap((page) => page.keys)
  const names = roles.data?.roles.map((role) => role.name) ?? []
  const fields = [field('name', 'Name', { required: true, hint: 'Who or what uses it; shown in the audit log.' }), field('role', 'Role', { control: 'choice', options: names, required: true }), field('days', 'Days until it expires', { control: 'integer', minimum: 1, hint: 'Empty: never.' })]
  return (
    <Panel title="Keys" flush actions={may('keys:manage') && <FormAction small label="New key" icon={Plus} fields={fields} build={(values) => ({ ...newKeyAction(values, tenant.tenant ?? null), after: (response) => setShown(response as components['schemas']['ShownKey']) })} />}>
      <Loaded query={query}>
        {() => keys.length === 0 ? (
          <Empty icon={KeyRound} title="No key exists" command="runlane keys create ops --role operator">A server on another address than this machine needs keys. The first one is created with the command, on the machine of the database.</Empty>
        ) : (
          <Table<Key> inline name="keys" label="Keys" columns={COLUMNS} rows={keys} id={(key) => key.id} dimmed={isOver} actions={may('keys:manage') ? (key) => <ActionMenu label={`Actions of ${key.name}`} actions={[revokeAction(key)]} /> : undefined} footer={<PagesFooter query={query} count={keys.length} noun="key" />} />
        )}
      </Loaded>
      {shown !== null && <ShownOnce title={`The key ${shown.name}`} value={shown.key ?? ''} onClose={() => setShown(null)}><p className="text-soft">Programs send it as a bearer token, or read it from RUNLANE_API_KEY.</p></ShownOnce>}
    </Panel>
  )
}
