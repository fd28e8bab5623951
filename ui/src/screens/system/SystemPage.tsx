/* The checks of `runlane doctor` as a page, the serving processes, and what this server is. */
import { CircleCheck, CircleX, Info, type LucideIcon, TriangleAlert } from 'lucide-react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { PAGE_VERSION } from '@/app/Bars'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { formatBytes, formatCount, plural } from '@/format/number'
import { shortId, visible } from '@/format/text'
import { cx, TONE_TEXT } from '@/parts/classes'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Facts, Page, PageHeader, Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import type { Tone } from '@/text/status'
import { DatabaseSize } from './DatabaseSize'
import { SlowStatements } from './SlowStatements'

const LEVELS: Record<string, { tone: Tone; icon: LucideIcon; word: string; rank: number }> = {
  broken: { tone: 'bad', icon: CircleX, word: 'broken', rank: 0 },
  warning: { tone: 'wait', icon: TriangleAlert, word: 'warning', rank: 1 },
  note: { tone: 'busy', icon: Info, word: 'note', rank: 2 },
  ok: { tone: 'ok', icon: CircleCheck, word: 'ok', rank: 3 },
}
/** The page that shows what a check is about. */
const PAGES: Record<string, string> = {
  workers: '/workers', lanes: '/lanes', tasks: '/definitions?kind=tasks', 'dead letters': '/dead-letters', schedules: '/schedules', webhooks: '/webhooks', secrets: '/secrets', quotas: '/usage?tab=quotas',
}
const UNKNOWN = { tone: 'idle' as Tone, icon: Info, word: '', rank: 2 }

/** How the process learns of changes by others. */
function wakeUps(figures: Record<string, unknown>): string {
  if (typeof figures.bus !== 'string' || figures.bus === 'none') return 'polling'
  return figures.connected === true ? figures.bus : `${figures.bus}, not connected`
}

function Servers({ servers }: { servers: components['schemas']['ServerReplica'][] }) {
  return (
    <div role="region" aria-label="Serving processes" tabIndex={0} className="overflow-x-auto">
      <table className="w-full text-left">
        <thead><tr className="border-b border-line text-2xs text-faint">{['Process', 'Host', 'Version', 'Up since', 'Seen', 'Streams', 'Pages', 'Memory', 'Wake-ups', 'Executes runs'].map((title) => <th key={title} scope="col" className="px-3 py-1.5 font-medium">{title}</th>)}</tr></thead>
        <tbody>
          {servers.map((server) => (
            <tr key={server.id} className="border-b border-line last:border-b-0">
              <th scope="row" className="px-3 py-1.5 font-mono text-xs font-normal" title={server.id}>{shortId(server.id)}</th>
              <td className="px-3 py-1.5">{visible(server.hostname)} ({server.pid})</td>
              <td className="px-3 py-1.5">{server.version}</td>
              <td className="px-3 py-1.5"><Time at={server.started_at} style="relative" /></td>
              <td className="px-3 py-1.5"><Time at={server.last_heartbeat} style="relative" /></td>
              <td className="tabular px-3 py-1.5">{String(server.figures.followers ?? '–')}</td>
              <td className="tabular px-3 py-1.5">{String(server.figures.pages ?? '–')}</td>
              <td className="tabular px-3 py-1.5">{typeof server.figures.memory_mb === 'number' ? `${Math.round(server.figures.memory_mb)} MB` : '–'}</td>
              <td className="px-3 py-1.5">{wakeUps(server.figures)}</td>
              <td className="px-3 py-1.5">{server.figures.worker === true ? 'yes' : 'no'}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function Checks() {
  const query = useApi('/api/v2/doctor', {}, { topics: ['workers', 'lanes'], pollMs: 30_000 })
  return (
    <>
      <Panel title="Checks" flush>
        <Loaded query={query}>
          {({ findings }) => (
            <ul aria-label="Checks" className="divide-y divide-line">
              {[...findings].sort((a, b) => (LEVELS[a.level] ?? UNKNOWN).rank - (LEVELS[b.level] ?? UNKNOWN).rank).map((finding, index) => {
                const { tone, icon: Icon, word } = LEVELS[finding.level] ?? UNKNOWN
                return (
                  <li key={`${finding.check} ${index}`} className="flex flex-wrap items-start gap-x-3 gap-y-0.5 px-3 py-2">
                    <Icon size={15} role="img" aria-label={word || finding.level} className={cx('mt-0.5 shrink-0', TONE_TEXT[tone])} />
                    <span className="w-36 font-medium">{PAGES[finding.check] === undefined ? finding.check : <Link href={PAGES[finding.check]!} className="text-accent underline">{finding.check}</Link>}</span>
                    <div className="min-w-60 flex-1 max-sm:ml-6.5 max-sm:min-w-full max-sm:pr-6.5"><p className="break-words">{visible(finding.message)}</p>{finding.cure !== null && <p className="break-words text-soft">{visible(finding.cure)}</p>}</div>
                  </li>
                )
              })}
            </ul>
          )}
        </Loaded>
      </Panel>
      <Panel title="Serving processes" flush>
        <Loaded query={query} rows={2}>{({ servers }) => servers.length === 0 ? <Empty title="No process has reported itself yet" /> : <Servers servers={servers} />}</Loaded>
      </Panel>
      {query.data !== undefined && <SlowStatements servers={query.data.servers} />}
    </>
  )
}

const days = (count: number) => plural(count, 'day')

export default function SystemPage() {
  useTitle('System')
  const { info, platformAdmin } = useSession()
  const { features, limits, retention } = info
  return (
    <Page>
      <PageHeader title="System" note="What the checks of this installation find, and how to fix it."><CopyRead path="/api/v2/doctor" cli={asCli('doctor')} /></PageHeader>
      {platformAdmin ? <><Checks /><DatabaseSize /></> : <Empty title="The checks concern every tenant">They are shown to platform admins.</Empty>}
      <Panel title="This server">
        <Facts
          items={[
            ['Version', info.version],
            ['Dashboard', PAGE_VERSION],
            ['Schema', info.schema_revision ?? '–'],
            ['Database', features?.database ?? '–'],
            ['Wake-ups', features?.wakeups ?? '–'],
            ['Connected', features === null || features === undefined ? '–' : features.connected ? 'yes' : 'no'],
            ['Executes runs itself', features?.worker === true ? 'yes' : 'no'],
            ['Secrets', features?.secrets === true ? 'configured' : 'no encryption key'],
            ['Tracing', features?.tracing === true ? 'on' : 'off'],
            ['Largest input', limits === null || limits === undefined ? '–' : formatBytes(limits.input_bytes)],
            ['Largest page', limits === null || limits === undefined ? '–' : formatCount(limits.page)],
          ]}
        />
        {retention !== null && retention !== undefined && (
          <div className="mt-4">
            <h3 className="mb-1 font-semibold">Kept for</h3>
            <Facts items={[['Runs', days(retention.runs_days)], ['Events of ended runs', retention.events_days === null ? 'as long as the run' : days(retention.events_days)], ['Audit log', days(retention.audit_days)], ['Webhook messages', days(retention.webhooks_days)]]} />
          </div>
        )}
      </Panel>
    </Page>
  )
}
