/* The log of deliveries: status, tries, answers; one opens with request, response and every attempt. */
import { parseJson } from '@/api/json'
import { useApi } from '@/api/query'
import { type Address } from '@/app/address'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { shortId, visible } from '@/format/text'
import { ActionButton } from '@/parts/action/ActionButtons'
import { Dialog } from '@/parts/Dialog'
import { Empty } from '@/parts/Empty'
import { Select } from '@/parts/form/Field'
import { JsonView } from '@/parts/json/JsonView'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { PagesFooter, usePages } from '@/parts/pages'
import { Facts, Panel } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Duration, Time } from '@/parts/Time'
import type { Tone } from '@/text/status'
import { type Delivery, replayAction, replayFailedAction } from './webhookActions'

const TONES: Record<string, Tone> = { pending: 'wait', delivering: 'busy', held: 'person', delivered: 'ok', failed: 'bad', discarded: 'idle' }

const COLUMNS: Column<Delivery>[] = [
  { id: 'type', title: 'Message', width: 150, grow: true, fixed: true, render: (delivery) => <span className="font-medium">{delivery.type}</span> },
  { id: 'status', title: 'Status', width: 100, render: (delivery) => <Chip tone={TONES[delivery.status] ?? 'idle'}>{delivery.status}</Chip> },
  { id: 'answer', title: 'Answer', width: 170, grow: true, render: (delivery) => <span className="text-soft">{delivery.status_code ?? (delivery.error === null ? '–' : visible(delivery.error))}</span> },
  { id: 'tries', title: 'Tries', width: 70, align: 'right', render: (delivery) => <span className="tabular text-soft">{delivery.tries} / {delivery.max_tries}</span> },
  { id: 'created', title: 'Created', width: 96, render: (delivery) => <Time at={delivery.created_at} style="relative" /> },
  { id: 'next', title: 'Next try', width: 96, wideOnly: true, render: (delivery) => <Time at={delivery.next_at} style="relative" /> },
  { id: 'run', title: 'Run', width: 92, wideOnly: true, render: (delivery) => <code className="font-mono text-xs text-soft">{delivery.run_id === null ? '' : shortId(delivery.run_id)}</code> },
  { id: 'endpoint', title: 'Endpoint', width: 92, wideOnly: true, render: (delivery) => <code className="font-mono text-xs text-soft">{shortId(delivery.endpoint_id)}</code> },
]

function readBody(text: string): { value: unknown } | null {
  try {
    return { value: parseJson(text) }
  } catch {
    return null
  }
}

function Body({ text }: { text: string }) {
  const json = readBody(text)
  if (json !== null) return <JsonView value={json.value} label="the body" openDepth={3} />
  return <pre tabIndex={0} className="max-h-60 overflow-auto font-mono text-xs whitespace-pre-wrap">{visible(text)}</pre>
}

function DeliveryDialog({ id, onClose }: { id: string; onClose: () => void }) {
  const { may } = useSession()
  const query = useApi('/api/v2/webhooks/deliveries/{delivery_id}', { path: { delivery_id: id } }, { topics: ['deliveries'] })
  return (
    <Dialog wide title={<>Delivery <code className="font-mono">{shortId(id)}</code></>} onClose={onClose} footer={query.data !== undefined && may('webhooks:write') ? <ActionButton action={replayAction(query.data)} /> : undefined}>
      <Loaded query={query}>
        {(delivery) => (
          <div className="flex flex-col gap-3">
            <Facts items={[['Status', <Chip key="status" tone={TONES[delivery.status] ?? 'idle'}>{delivery.status}</Chip>], ['Message', delivery.type], ['Message id', <code key="id" className="font-mono text-xs">{delivery.message_id}</code>], ['Created', <Time key="at" at={delivery.created_at} style="exact" />], ['Next try', <Time key="next" at={delivery.next_at} style="relative" />], ['Replay of', delivery.replay_of ?? '–']]} />
            <section><h3 className="mb-1 font-semibold">Body</h3><div className="rounded-md border border-line bg-sunken p-2"><Body text={delivery.body} /></div></section>
            <section>
              <h3 className="mb-1 font-semibold">Attempts</h3>
              {delivery.attempts.length === 0 && <p className="text-soft">It has not been tried yet.</p>}
              <ol className="flex flex-col gap-2">
                {delivery.attempts.map((attempt) => (
                  <li key={attempt.number} className="rounded-md border border-line px-3 py-2">
                    <p className="flex flex-wrap gap-x-4"><span className="font-medium">{attempt.number}.</span><span className={attempt.status_code !== null && attempt.status_code < 300 ? 'text-ok' : 'text-bad'}>{attempt.status_code ?? attempt.error_kind ?? 'no answer'}</span><Time at={attempt.started_at} style="exact" /><Duration seconds={attempt.duration_seconds} /><span className="text-soft">{attempt.address}</span></p>
                    {attempt.error !== null && <p className="break-words text-bad">{visible(attempt.error)}</p>}
                    <details className="text-xs text-soft"><summary className="w-fit">Request and response</summary><JsonView value={{ request_headers: attempt.request_headers, response_headers: attempt.response_headers }} label="the headers" openDepth={3} bare />{attempt.response_body !== null && <Body text={attempt.response_body} />}</details>
                  </li>
                ))}
              </ol>
            </section>
          </div>
        )}
      </Loaded>
    </Dialog>
  )
}

export function Deliveries({ endpointId, address }: { endpointId: string | null; address: Address }) {
  const { may } = useSession()
  const status = address.get('status') as Delivery['status'] | null
  const opened = address.get('delivery')
  const { query, pages } = usePages('/api/v2/webhooks/deliveries', { query: { endpoint_id: endpointId ?? undefined, status: status ?? undefined, ...useTenantParam() } }, { topics: ['deliveries'], pollMs: 10_000 })
  const deliveries = pages.flatMap((page) => page.deliveries)
  return (
    <Panel
      title="Deliveries"
      flush
      actions={
        <span className="flex gap-1.5">
          <Select aria-label="Status" value={status ?? ''} options={[['', 'Any status'], ...Object.keys(TONES).map((name) => [name, name] as [string, string])]} onChange={(event) => address.set({ status: event.target.value || null })} />
          {may('webhooks:write') && <ActionButton action={replayFailedAction(endpointId)} />}
        </span>
      }
    >
      <Loaded query={query}>
        {() => (deliveries.length === 0 ? <Empty title={status === null ? 'No message has been sent yet' : 'No delivery has this status'}>Each message to an endpoint, or to the webhook URL of a run, is logged here with every attempt.</Empty> : <Table<Delivery> inline name="deliveries" label="Deliveries" columns={COLUMNS} rows={deliveries} id={(delivery) => delivery.id} link={(delivery) => address.link({ delivery: delivery.id })} footer={<PagesFooter query={query} count={deliveries.length} noun="delivery" many="deliveries" />} />)}
      </Loaded>
      {opened !== null && <DeliveryDialog id={opened} onClose={() => address.set({ delivery: null })} />}
    </Panel>
  )
}
