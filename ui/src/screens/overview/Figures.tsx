/* The figures at the top. No figure without a link to the list that explains it. */
import type { ReactNode } from 'react'
import { Link } from 'wouter'
import { SLOW_POLL_MS, useApi } from '@/api/query'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { formatCost, formatCount, plural } from '@/format/number'
import { serverNow } from '@/format/time'
import { cx, TONE_TEXT } from '@/parts/classes'
import type { Tone } from '@/text/status'

interface StatusCount {
  status: string
  count: number
  exact: boolean
}

interface FigureProps {
  to: string
  label: string
  value: ReactNode
  note?: ReactNode
  tone?: Tone
}

function Figure({ to, label, value, note, tone }: FigureProps) {
  return (
    <Link href={to} className="flex min-w-0 flex-col rounded-lg border border-line bg-surface px-3 py-2 hover:border-line-strong hover:bg-hover">
      <span className="text-xs text-soft">{label}</span>
      <span className={cx('tabular text-2xl font-semibold', tone !== undefined && TONE_TEXT[tone])}>{value}</span>
      <span className="min-h-4 truncate text-xs text-faint">{note}</span>
    </Link>
  )
}

function countOf(counts: StatusCount[], ...statuses: string[]): { text: string; count: number } {
  const found = counts.filter((entry) => statuses.includes(entry.status))
  const count = found.reduce((sum, entry) => sum + entry.count, 0)
  return { count, text: `${formatCount(count)}${found.every((entry) => entry.exact) ? '' : '+'}` }
}

function WorkersFigure() {
  const workers = useApi('/api/v2/workers', {}, { topics: ['workers'], pollMs: SLOW_POLL_MS })
  const list = workers.data?.workers ?? []
  const busy = list.reduce((sum, worker) => sum + worker.active_jobs, 0)
  const slots = list.reduce((sum, worker) => sum + worker.max_jobs, 0)
  const draining = list.filter((worker) => worker.status === 'draining').length
  return (
    <Figure
      to="/workers"
      label="Workers"
      value={workers.data === undefined ? '–' : formatCount(list.length)}
      note={workers.data === undefined ? undefined : `${formatCount(busy)} of ${formatCount(slots)} slots busy${draining > 0 ? `, ${draining} draining` : ''}`}
      tone={workers.data !== undefined && list.length === 0 ? 'bad' : undefined}
    />
  )
}

/** What the tenant on the page may spend in a day; null without a cap, or if the key may not see it. */
function useDailyCap(): number | null {
  const { may, me } = useSession()
  const { tenant } = useTenantParam()
  const tenants = useApi('/api/v2/tenants', {}, { topics: ['access'], staleMs: 60_000, enabled: may('keys:manage') })
  return tenants.data?.tenants.find((entry) => entry.id === (tenant ?? me.tenant))?.max_cost_usd_per_day ?? null
}

function CostFigure() {
  const tenant = useTenantParam()
  const today = new Date(serverNow()).toISOString().slice(0, 10)
  const usage = useApi('/api/v2/usage', { query: { ...tenant, from: today, to: today, group: 'day' } }, { topics: ['runs'], staleMs: 10_000 })
  const total = usage.data?.total
  const cost = total?.cost_usd ?? (total === undefined ? null : 0)
  const cap = useDailyCap()
  const near = cap !== null && cost !== null && cost >= 0.8 * cap
  const note = total === undefined ? undefined : cap === null ? `${plural(total?.calls ?? 0, 'model call')}` : `of ${formatCost(cap)} for the day`
  return <Figure to="/usage" label="Cost today (UTC)" value={formatCost(cost)} note={note} tone={near ? 'wait' : undefined} />
}

function LettersFigure() {
  const tenant = useTenantParam()
  const letters = useApi('/api/v2/dead-letters', { query: { ...tenant, limit: 1 } }, { topics: ['dead_letters'] })
  const open = letters.data?.open
  return <Figure to="/dead-letters" label="Dead letters" value={formatCount(open)} note="not handled yet" tone={open !== undefined && open > 0 ? 'bad' : undefined} />
}

export function Figures({ counts }: { counts: StatusCount[] }) {
  const { may } = useSession()
  const tenant = useTenantParam()
  const inbox = useApi('/api/v2/inbox/count', { query: tenant }, { topics: ['inbox'] })
  const running = countOf(counts, 'running')
  const ready = countOf(counts, 'queued')
  const later = countOf(counts, 'scheduled', 'blocked')
  return (
    <div className="grid grid-cols-[repeat(auto-fit,minmax(132px,1fr))] gap-2">
      <Figure to="/runs?status=running&window=all&children=yes" label="Running" value={running.text} tone={running.count > 0 ? 'busy' : undefined} note="now" />
      <Figure to="/runs?status=queued&window=all&children=yes" label="Ready" value={ready.text} tone={ready.count > 0 ? 'wait' : undefined} note="wait for a slot" />
      <Figure to="/runs?status=scheduled&status=blocked&window=all&children=yes" label="Later" value={later.text} note="due later or blocked" />
      <Figure to="/inbox" label="Questions" value={`${formatCount(inbox.data?.total)}${inbox.data?.exact === false ? '+' : ''}`} tone={(inbox.data?.total ?? 0) > 0 ? 'person' : undefined} note="wait for a person" />
      <LettersFigure />
      {may('workers:view') && <WorkersFigure />}
      <CostFigure />
    </div>
  )
}
