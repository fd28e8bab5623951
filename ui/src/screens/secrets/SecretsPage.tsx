/* Secrets by name. Values are written and never read back. */
import { KeyRound, Plus, RefreshCw, Trash2 } from 'lucide-react'
import { useState } from 'react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useTitle } from '@/app/inboxCount'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { shortId, visible } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { ActionButton, ActionMenu } from '@/parts/action/ActionButtons'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Button } from '@/parts/Button'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Field, TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { PagesFooter, usePages } from '@/parts/pages'
import { Page, PageHeader } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Time } from '@/parts/Time'

type Secret = components['schemas']['Secret']

const COLUMNS: Column<Secret>[] = [
  { id: 'name', title: 'Name', width: 200, grow: true, fixed: true, render: (secret) => <code className="font-mono font-medium">{secret.name}</code> },
  { id: 'version', title: 'Version', width: 80, align: 'right', render: (secret) => <span className="tabular">{secret.version}</span> },
  { id: 'by', title: 'Set by', width: 140, render: (secret) => <span className="text-soft">{visible(secret.updated_by)}</span> },
  { id: 'at', title: 'Set', width: 110, render: (secret) => <Time at={secret.updated_at} style="relative" /> },
  { id: 'key', title: 'Encryption key', width: 130, wideOnly: true, render: (secret) => <code className="font-mono text-xs text-soft">{shortId(secret.key_id)}</code> },
  { id: 'tenant', title: 'Tenant', width: 120, wideOnly: true, render: (secret) => <span className="text-soft">{secret.tenant}</span> },
]

/** The definitions that stop working without a secret. */
function SecretUsers({ secret }: { secret: Secret }) {
  const query = useApi('/api/v2/secrets/{name}/used-by', { path: { name: secret.name }, query: { tenant: secret.tenant } }, { topics: ['definitions'] })
  return (
    <Loaded query={query} rows={1}>
      {({ used_by: users }) => (users.length === 0 ? <p>No definition refers to it.</p> : <p>Used by {users.map((user) => `${user.kind.replace('_', ' ')} ${visible(user.id)}`).join(', ')}.</p>)}
    </Loaded>
  )
}

function rotateAction(tenant: string | undefined): Action {
  return {
    id: 'rotate-secrets', label: 'Rotate', icon: RefreshCw, title: 'Encrypt the secrets with the current key', verb: 'Rotate the secrets',
    consequence: `Secrets of ${tenant === undefined ? 'every tenant that this key may manage' : `the tenant ${tenant}`} that are encrypted with an older key are encrypted with the first key of the server. Their values and versions stay, and calls continue meanwhile.`,
    request: request('post', '/api/v2/secrets/rotate', { body: tenant === undefined ? {} : { tenant }, cli: asCli('secrets', 'rotate', ...(tenant === undefined ? [] : ['--tenant', tenant])) }),
    done: (response) => {
      const { rotated, unreadable } = response as components['schemas']['RotatedSecrets']
      return `${plural(rotated, 'secret is', 'secrets are')} encrypted again${unreadable.length > 0 ? `; ${unreadable.length} cannot be read with any key of the server` : ''}.`
    },
  }
}

function deleteAction(secret: Secret): Action {
  return {
    id: 'delete-secret', label: 'Delete', icon: Trash2, danger: true, title: `Delete ${secret.name}`, verb: 'Delete the secret', typed: secret.name,
    consequence: <><p>{`Calls that need {secret.${secret.name}} fail from now on. The value cannot be restored.`}</p><SecretUsers secret={secret} /></>,
    request: request('delete', '/api/v2/secrets/{name}', { path: { name: secret.name }, query: { tenant: secret.tenant } as never, cli: asCli('secrets', 'delete', secret.name) }),
    done: `The secret ${secret.name} is deleted.`,
  }
}

function SetSecret({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState('')
  const [value, setValue] = useState('')
  const tenant = useTenantParam()
  const send = request('put', '/api/v2/secrets/{name}', { path: { name: name || 'NAME' }, body: { value, ...tenant } })
  return (
    <ActionDialog
      onClose={onClose}
      action={{
        id: 'set-secret', label: 'Set', icon: KeyRound, refused: name === '' || value === '' ? 'A name and a value are required.' : null, title: 'Set a secret', verb: 'Store the secret',
        consequence: 'The value is encrypted and stored as a new version, used by calls from now on. It is never shown again, not even here.',
        // Commands are copied and stay in histories, so they never contain the value.
        request: { ...send, shownBody: { value: 'VALUE', ...tenant }, cli: asCli('secrets', 'set', name || 'NAME', '--from-file', 'FILE') },
        done: 'The secret is stored.',
      }}
    >
      <Field label="Name" required hint="Definitions refer to it as {secret.NAME}.">{(ids) => <TextInput {...ids} data-autofocus value={name} onChange={(event) => setName(event.target.value)} />}</Field>
      <Field label="Value" required>{(ids) => <TextInput {...ids} type="password" autoComplete="new-password" value={value} onChange={(event) => setValue(event.target.value)} />}</Field>
    </ActionDialog>
  )
}

export default function SecretsPage() {
  useTitle('Secrets')
  const [setting, setSetting] = useState(false)
  const tenant = useTenantParam()
  const { query, pages } = usePages('/api/v2/secrets', { query: tenant }, { topics: ['secrets'] })
  const secrets = pages.flatMap((page) => page.secrets)
  return (
    <Page fill>
      <PageHeader title="Secrets" note="Names only. A value is encrypted when it is stored and is never sent to a browser.">
        <Button look="main" icon={Plus} onClick={() => setSetting(true)}>Set a secret</Button>
        <ActionButton action={rotateAction(tenant.tenant)} />
        <CopyRead path="/api/v2/secrets" cli={asCli('secrets', 'list')} />
      </PageHeader>
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">
        <Loaded query={query}>
          {() => secrets.length === 0 ? (
            <Empty icon={KeyRound} title="No secret is stored" command="runlane secrets set API_TOKEN --from-file token.txt">Tools, MCP servers and headers refer to credentials as {'{secret.NAME}'}, so that definitions can be shared and displayed.</Empty>
          ) : (
            <Table<Secret> name="secrets" label="Secrets" columns={COLUMNS} rows={secrets} id={(secret) => `${secret.tenant}/${secret.name}`} actions={(secret) => <ActionMenu label={`Actions of ${secret.name}`} actions={[deleteAction(secret)]} />} footer={<PagesFooter query={query} count={secrets.length} noun="secret" />} />
          )}
        </Loaded>
      </section>
      {setting && <SetSecret onClose={() => setSetting(false)} />}
    </Page>
  )
}
