/* One endpoint: health, settings, secret, test, and its deliveries. */
import { CirclePause, CirclePlay, KeyRound } from 'lucide-react'
import { useState } from 'react'
import { useLocation, useParams } from 'wouter'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { visible } from '@/format/text'
import { ActionButton } from '@/parts/action/ActionButtons'
import { field, FormAction } from '@/parts/action/FormAction'
import { CopyRead } from '@/parts/CopyRead'
import { Loaded } from '@/parts/Loading'
import { Facts, Page, PageHeader, Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import { Deliveries } from './Deliveries'
import { WebhookSecretDialog } from './SecretDialog'
import { deleteEndpointAction, disableAction, enableAction, type Endpoint, rotateAction, testAction } from './webhookActions'
import { Delivered, Health } from './WebhooksPage'

function Buttons({ endpoint }: { endpoint: Endpoint }) {
  const [, navigate] = useLocation()
  const [secret, setSecret] = useState<components['schemas']['WebhookSecret'] | null>(null)
  return (
    <>
      <ActionButton action={testAction(endpoint)} />
      {endpoint.enabled ? (
        <FormAction label="Disable" icon={CirclePause} fields={[field('reason', 'Reason', { required: true })]} build={(values) => disableAction(endpoint, values)} />
      ) : (
        <FormAction label="Enable" icon={CirclePlay} look="main" fields={[field('held', 'Held messages', { control: 'choice', options: ['send', 'discard'], initial: 'send', required: true })]} build={(values) => enableAction(endpoint, values)} />
      )}
      <FormAction label="Rotate the secret" icon={KeyRound} fields={[field('overlap_hours', 'Hours with both secrets', { control: 'integer', minimum: 0, initial: 24, required: true })]} build={(values) => ({ ...rotateAction(endpoint, values), after: (response) => setSecret(response as components['schemas']['WebhookSecret']) })} />
      <ActionButton action={{ ...deleteEndpointAction(endpoint), after: () => navigate('/webhooks') }} />
      {secret !== null && <WebhookSecretDialog secret={secret} onClose={() => setSecret(null)} />}
    </>
  )
}

export default function EndpointPage() {
  const { endpointId = '' } = useParams<{ endpointId: string }>()
  const { may } = useSession()
  const address = useAddress()
  useTitle('Webhook endpoint')
  const query = useApi('/api/v2/webhooks/endpoints/{endpoint_id}', { path: { endpoint_id: endpointId } }, { topics: ['deliveries'] })
  return (
    <Page>
      <Loaded query={query}>
        {(endpoint) => (
          <>
            <PageHeader title={<span className="flex min-w-0 flex-wrap items-center gap-2"><span className="break-all">{visible(endpoint.url)}</span> <Health endpoint={endpoint} /></span>} note={visible(endpoint.description)}>
              {may('webhooks:write') && <Buttons endpoint={endpoint} />}
              <CopyRead path={`/api/v2/webhooks/endpoints/${endpoint.id}`} cli={asCli('webhooks', 'show', endpoint.id)} />
            </PageHeader>
            {!endpoint.enabled && <p role="status" className="rounded-md bg-wait-soft px-3 py-1.5 text-wait">Disabled <Time at={endpoint.disabled_at} style="relative" />: {visible(endpoint.disabled_reason ?? 'no reason was given')}. Messages are held.</p>}
            <Panel>
              <Facts items={[
                ['Messages', endpoint.types.length === 0 ? 'all types' : endpoint.types.join(', ')],
                ['Content', endpoint.include.length === 0 ? 'neither input nor result' : endpoint.include.join(', ')],
                ['Signature', endpoint.signature],
                ['Order', endpoint.ordered ? 'in order' : 'in parallel'],
                ['Rate', `${endpoint.rate_per_second} per second, ${endpoint.max_in_flight} in flight`],
                ['Delivered', <Delivered key="share" endpoint={endpoint} />],
                ['Failures in a row', endpoint.consecutive_failures],
                ['Last success', <Time key="success" at={endpoint.last_success_at} style="relative" />],
                ['Headers', Object.keys(endpoint.headers).join(', ') || 'none'],
                ['Filter', Object.entries(endpoint.filter).map(([name, values]) => `${name}: ${values.join(', ')}`).join('; ') || 'none'],
                ['Id', <code key="id" className="font-mono text-xs">{endpoint.id}</code>],
              ]} />
            </Panel>
            <Deliveries endpointId={endpoint.id} address={address} />
          </>
        )}
      </Loaded>
    </Page>
  )
}
