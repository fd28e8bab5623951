/* Webhook endpoints with their health, and the log of deliveries. */
import { Plus, Webhook } from 'lucide-react'
import { useMemo, useState } from 'react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { oneLine, visible } from '@/format/text'
import { field, FormAction } from '@/parts/action/FormAction'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Chip, Meter } from '@/parts/Meter'
import { PagesFooter, usePages } from '@/parts/pages'
import { Page, PageHeader, Panel } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Time } from '@/parts/Time'
import type { Tone } from '@/text/status'
import { Deliveries } from './Deliveries'
import { WebhookSecretDialog } from './SecretDialog'
import { createAction, type Endpoint } from './webhookActions'

const HEALTH: Record<string, Tone> = { healthy: 'ok', ok: 'ok', new: 'idle', failing: 'bad', disabled: 'idle' }

export function Health({ endpoint }: { endpoint: Endpoint }) {
  return <Chip tone={HEALTH[endpoint.health] ?? 'wait'} title={endpoint.disabled_reason ?? undefined}>{endpoint.health}</Chip>
}

/** The share of the latest messages that were delivered, of those that have an outcome. */
export function Delivered({ endpoint }: { endpoint: Endpoint }) {
  const { delivered = 0, failed = 0 } = endpoint.recent ?? {}
  const decided = delivered + failed
  if (decided === 0) return <span className="text-faint" title="No message has an outcome yet">–</span>
  const share = Math.floor((delivered / decided) * 100)
  return (
    <span title={`${delivered} of the latest ${decided} messages with an outcome were delivered`}>
      <Meter label="Share of the latest messages that were delivered" value={delivered} max={decided} tone={failed === 0 ? 'ok' : share < 50 ? 'bad' : 'wait'} text={`${share}%`} />
    </span>
  )
}

const COLUMNS: Column<Endpoint>[] = [
  { id: 'url', title: 'Endpoint', width: 220, grow: true, fixed: true, render: (endpoint) => <span className="font-medium" title={endpoint.url}>{oneLine(endpoint.url, 120)}</span> },
  { id: 'health', title: 'Health', width: 88, render: (endpoint) => <Health endpoint={endpoint} /> },
  { id: 'types', title: 'Messages', width: 140, grow: true, render: (endpoint) => <span className="text-soft">{endpoint.types.length === 0 ? 'all' : oneLine(endpoint.types.join(', '), 80)}</span> },
  { id: 'share', title: 'Delivered', width: 124, render: (endpoint) => <Delivered endpoint={endpoint} /> },
  { id: 'failures', title: 'Failures in a row', width: 112, align: 'right', render: (endpoint) => <span className={endpoint.consecutive_failures > 0 ? 'tabular text-bad' : 'tabular text-soft'}>{endpoint.consecutive_failures}</span> },
  { id: 'success', title: 'Last success', width: 96, render: (endpoint) => <Time at={endpoint.last_success_at} style="relative" /> },
  { id: 'why', title: 'Disabled because', width: 130, wideOnly: true, render: (endpoint) => <span className="text-soft">{endpoint.disabled_reason === null ? '' : visible(endpoint.disabled_reason)}</span> },
  { id: 'about', title: 'Description', width: 140, wideOnly: true, render: (endpoint) => <span className="text-soft">{oneLine(endpoint.description, 80)}</span> },
]

function NewEndpoint() {
  const types = useApi('/api/v2/webhooks/event-types', {}, { staleMs: 600_000 })
  const [secret, setSecret] = useState<components['schemas']['WebhookSecret'] | null>(null)
  const fields = useMemo(
    () => [
      field('url', 'URL', { required: true, hint: 'Receives POST requests with JSON. Private addresses need an allowance of the server.' }),
      field('types', 'Messages', { hint: `Separated by commas; empty: all. ${types.data?.event_types.map(({ type }) => type).join(', ') ?? ''}` }),
      field('include', 'Content', { control: 'choices', options: ['input', 'result'] }),
      field('signature', 'Signature', { control: 'choice', options: ['hmac', 'ed25519'], initial: 'hmac', required: true, hint: 'hmac: a shared secret. ed25519: the receiver needs only the public key.' }),
      field('ordered', 'Deliver in order: a failed message delays the next ones', { control: 'boolean' }),
      field('description', 'Description'),
    ],
    [types.data],
  )
  return (
    <>
      <FormAction label="New endpoint" icon={Plus} look="main" fields={fields} build={(values) => ({ ...createAction(values), after: (response) => setSecret((response as components['schemas']['CreatedEndpoint']).secret) })} />
      {secret !== null && <WebhookSecretDialog secret={secret} onClose={() => setSecret(null)} />}
    </>
  )
}

export default function WebhooksPage() {
  useTitle('Webhooks')
  const { may } = useSession()
  const address = useAddress()
  const { query, pages } = usePages('/api/v2/webhooks/endpoints', { query: useTenantParam() }, { topics: ['deliveries'], pollMs: 15_000 })
  const endpoints = pages.flatMap((page) => page.endpoints)
  return (
    <Page>
      <PageHeader title="Webhooks" note="Signed messages about runs, sent at least once, with retries.">
        {may('webhooks:write') && <NewEndpoint />}
        <CopyRead path="/api/v2/webhooks/endpoints" cli={asCli('webhooks', 'list')} />
      </PageHeader>
      <Panel title="Endpoints" flush>
        <Loaded query={query}>
          {() =>
            endpoints.length === 0 ? (
              <Empty icon={Webhook} title="No endpoint exists yet" command="runlane webhooks create https://example.com/hook --types run.failed">
                An endpoint receives signed messages when runs end, ask or fail. A run can also name its own webhook URL.
              </Empty>
            ) : (
              <Table<Endpoint> inline name="endpoints" label="Endpoints" columns={COLUMNS} rows={endpoints} id={(endpoint) => endpoint.id} link={(endpoint) => `/webhooks/${endpoint.id}`} dimmed={(endpoint) => !endpoint.enabled} footer={<PagesFooter query={query} count={endpoints.length} noun="endpoint" />} />
            )
          }
        </Loaded>
      </Panel>
      <Deliveries endpointId={null} address={address} />
    </Page>
  )
}
