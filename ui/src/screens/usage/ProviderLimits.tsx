/* Limits of provider credentials: what is in use now, what waits, and until when a provider is backing off. */
import { Gauge, RotateCcw, Settings2 } from 'lucide-react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { formatCount } from '@/format/number'
import { visible } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { ActionButton } from '@/parts/action/ActionButtons'
import { field, FormAction, type FormValues } from '@/parts/action/FormAction'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Meter } from '@/parts/Meter'
import { Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'

type Limits = components['schemas']['CredentialUsage']
const NAMES = ['in_flight', 'requests_per_minute', 'tokens_per_minute'] as const
const WORDS = { in_flight: 'Calls in flight', requests_per_minute: 'Requests per minute', tokens_per_minute: 'Tokens per minute' }
const FIELDS = NAMES.map((name) => field(name, WORDS[name], { control: 'integer', minimum: 0, hint: name === 'in_flight' ? 'Empty: no limit. 0 pauses the provider.' : 'Empty: no limit.' }))

function setAction(limits: Limits, values: FormValues): Action {
  const body = Object.fromEntries(NAMES.map((name) => [name, (values[name] as number | undefined) ?? null]))
  const given = NAMES.filter((name) => body[name] !== null)
  const none = NAMES.filter((name) => body[name] === null)
  return {
    id: 'set-limits', label: 'Change', icon: Settings2, title: `Limits of ${limits.credential}`, verb: 'Save the limits',
    consequence: `The limits apply to the whole cluster at once. Calls in flight (${limits.now.in_flight}) finish; others wait until there is room.`,
    request: request('put', '/api/v2/limits/{credential}', { path: { credential: limits.credential }, body, cli: asCli('limits', 'set', limits.credential, ...given.flatMap((name) => [`--${name.replaceAll('_', '-')}`, String(body[name])]), ...(none.length > 0 ? ['--no-limit', none.join(',')] : [])) }),
    done: 'The limits are stored.',
  }
}

function resetAction(limits: Limits): Action {
  return {
    id: 'reset-limits', label: 'Reset', icon: RotateCcw, refused: limits.default ? 'The defaults apply already.' : null, title: `Reset the limits of ${limits.credential}`, verb: 'Reset the limits',
    consequence: 'The defaults of the server apply again, at once.',
    request: request('delete', '/api/v2/limits/{credential}', { path: { credential: limits.credential }, cli: asCli('limits', 'reset', limits.credential) }),
    done: 'The defaults apply again.',
  }
}

export function ProviderLimits() {
  const { may } = useSession()
  const query = useApi('/api/v2/limits', {}, { topics: ['limits'], pollMs: 5_000 })
  return (
    <Panel title="Provider limits" flush>
      <Loaded query={query}>
        {({ limits }) => limits.length === 0 ? (
          <Empty icon={Gauge} title="No credential was used yet" command="runlane limits list">A provider's credential appears with its first call. Limits bound calls in flight, requests and tokens per minute for the whole cluster, and slow down when the provider asks for it.</Empty>
        ) : (
          <ul className="divide-y divide-line">
            {limits.map((limit) => (
              <li key={limit.credential} className="flex flex-col gap-2 px-3 py-3">
                <div className="flex flex-wrap items-center gap-2"><code className="font-mono font-medium">{visible(limit.credential)}</code>{limit.backing_off_until !== null && <span className="text-bad">backing off until <Time at={limit.backing_off_until} />: {visible(limit.backing_off_reason ?? '')}</span>}{limit.now.waiting_processes > 0 && <span className="text-wait">{formatCount(limit.now.waiting_processes)} processes wait</span>}<span className="ml-auto flex gap-1.5">{may('workers:manage') && <FormAction small label="Change" icon={Settings2} fields={FIELDS} initial={limit as unknown as FormValues} build={(values) => setAction(limit, values)} />}{may('workers:manage') && <ActionButton small action={resetAction(limit)} />}</span></div>
                <dl className="grid gap-2 sm:grid-cols-3">
                  {([['in_flight', limit.now.in_flight], ['requests_per_minute', limit.now.requests_this_minute], ['tokens_per_minute', limit.now.tokens_this_minute]] as const).map(([name, used]) => <div key={name}><dt className="text-2xs text-faint">{WORDS[name]}</dt><dd><Meter label={WORDS[name]} value={used} max={limit[name]} tone={limit[name] !== null && used >= limit[name] ? 'wait' : 'busy'} text={limit[name] === null ? `${formatCount(used)}, no limit` : undefined} /></dd></div>)}
                </dl>
              </li>
            ))}
          </ul>
        )}
      </Loaded>
    </Panel>
  )
}
