/* Runs that ended in each part of a window, by outcome. Each bar links to its runs. */
import { type KeyboardEvent, useState } from 'react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import { useAddress } from '@/app/address'
import { useTenantParam } from '@/app/tenant'
import { formatDuration } from '@/format/duration'
import { formatCost, formatCount, formatPercent } from '@/format/number'
import { formatClock, formatExact, serverNow, type Zone } from '@/format/time'
import { Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Panel } from '@/parts/Panel'
import { useZone } from '@/parts/Time'
import { everyBucket, type Point } from './buckets'

/** Seconds of the window and of one bar. */
const WINDOWS: Record<string, { label: string; seconds: number; step: number }> = {
  '15m': { label: '15 minutes', seconds: 900, step: 60 },
  '1h': { label: '1 hour', seconds: 3_600, step: 60 },
  '24h': { label: '24 hours', seconds: 86_400, step: 1_800 },
  '7d': { label: '7 days', seconds: 604_800, step: 10_800 },
}

function Bar({ point, step, most, lane, reached }: { point: Point; step: number; most: number; lane?: string; reached: boolean }) {
  const zone = useZone()
  const total = point.completed + point.failed + point.cancelled
  const end = new Date(Date.parse(point.at) + step * 1_000).toISOString()
  const share = (count: number) => `${(count / most) * 100}%`
  const text = `${formatClock(point.at, zone)}: ${formatCount(point.accepted)} accepted, ${formatCount(point.started)} started, ${formatCount(point.completed)} completed, ${formatCount(point.failed)} failed, ${formatCount(point.cancelled)} cancelled`
  return (
    <Link href={`/runs?children=yes&from=${point.at}&before=${end}${lane === undefined ? '' : `&lane=${encodeURIComponent(lane)}`}`} title={text} aria-label={text} tabIndex={reached ? 0 : -1} className="flex h-full min-w-0 flex-1 flex-col justify-end hover:bg-hover">
      <span className="bg-bad" style={{ height: share(point.failed) }} />
      <span className="bg-idle" style={{ height: share(point.cancelled) }} />
      <span className="bg-ok" style={{ height: share(point.completed) }} />
      {total === 0 && <span className="h-px bg-line" />}
    </Link>
  )
}

/** The bars are one stop of the Tab key; the arrow keys move between them. */
function Bars({ points, step, most, lane }: { points: Point[]; step: number; most: number; lane?: string }) {
  const [stop, setStop] = useState<string | null>(null)
  const reached = points.some((point) => point.at === stop) ? stop : points.at(-1)?.at
  const onKeyDown = (event: KeyboardEvent<HTMLDivElement>) => {
    const links = [...event.currentTarget.querySelectorAll('a')]
    const at = links.findIndex((link) => link === document.activeElement)
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: links.length - 1 }[event.key]
    if (next === undefined || links[next] === undefined) return
    event.preventDefault()
    setStop(points[next]?.at ?? null)
    links[next].focus()
  }
  return (
    <div role="group" aria-label="Ended runs over time, one link for each bar; the arrow keys move" onKeyDown={onKeyDown} className="flex min-w-0 flex-1 items-stretch gap-px">
      {points.map((point) => (
        <Bar key={point.at} point={point} step={step} most={most} lane={lane} reached={point.at === reached} />
      ))}
    </div>
  )
}

/** Both ends of an axis in one form: the time, and the date where the window has several days. */
function axisText(iso: string, zone: Zone, seconds: number): string {
  const exact = formatExact(iso, zone)
  return seconds > 86_400 ? exact.slice(5, 16) : exact.slice(11, 16)
}

interface Fact {
  term: string
  value: string
  more?: string
  /** The runs that it counts; a run that was accepted before the window is not among them. */
  to?: string
}

function Totals({ points, runs }: { points: Point[]; runs: string }) {
  const sum = (name: 'accepted' | 'started' | 'completed' | 'failed' | 'cancelled' | 'cost_usd' | 'retried') => points.reduce((total, point) => total + point[name], 0)
  const ended = sum('completed') + sum('failed')
  const waits = points.flatMap((point) => (point.wait_p95_seconds === null ? [] : [point.wait_p95_seconds]))
  const facts: Fact[] = [
    { term: 'accepted', value: formatCount(sum('accepted')), to: runs },
    { term: 'started', value: formatCount(sum('started')), to: runs },
    { term: 'completed', value: formatCount(sum('completed')), to: `${runs}&status=completed` },
    { term: 'failed', value: formatCount(sum('failed')), more: ended > 0 ? ` (${formatPercent(sum('failed') / ended)})` : '', to: `${runs}&status=failed` },
    { term: 'cancelled', value: formatCount(sum('cancelled')), to: `${runs}&status=cancelled` },
    { term: 'cost', value: formatCost(sum('cost_usd')), to: '/usage?days=1' },
    { term: 'longest p95 wait', value: waits.length === 0 ? '–' : formatDuration(Math.max(...waits)) },
  ]
  return (
    <dl className="flex flex-wrap gap-x-6 gap-y-1 text-xs text-soft">
      {facts.map(({ term, value, more = '', to }) => (
        <div key={term} className="flex gap-1.5">
          <dt>{term}</dt>
          <dd className="tabular font-medium text-ink">{to === undefined ? value : <Link href={to} aria-label={`${term}: ${value}`} className="hover:underline">{value}</Link>}{more}</dd>
        </div>
      ))}
    </dl>
  )
}

/** Of one lane, or of all. */
export function Throughput({ lane }: { lane?: string }) {
  const address = useAddress()
  const tenant = useTenantParam()
  const zone = useZone()
  const name = WINDOWS[address.get('window') ?? ''] === undefined ? '1h' : address.get('window')!
  const { seconds, step } = WINDOWS[name]!
  // Whole steps, so that the bars stay where they are and the answer can be kept.
  const to = Math.ceil(serverNow() / (step * 1_000)) * step * 1_000
  const from = new Date(to - seconds * 1_000).toISOString()
  const query = useApi('/api/v2/runs/series', { query: { ...tenant, lane, from, to: new Date(to).toISOString(), step } }, { topics: ['runs'], staleMs: 15_000, keep: true })
  return (
    <Panel
      title="Ended runs"
      actions={<Select aria-label="Window" value={name} options={Object.entries(WINDOWS).map(([value, { label }]) => [value, label])} onChange={(event) => address.set({ window: event.target.value === '1h' ? null : event.target.value })} />}
    >
      <Loaded query={query} rows={3}>
        {(series) => {
          const points = everyBucket(series.groups[0]?.points ?? [], Date.parse(from), to, series.step_seconds)
          const most = Math.max(1, ...points.map((point) => point.completed + point.failed + point.cancelled))
          const nothing = points.every((point) => point.completed + point.failed + point.cancelled === 0)
          return (
            <div className="flex flex-col gap-2">
              <div className="relative flex h-24 items-stretch gap-px border-b border-line">
                {nothing && <p className="pointer-events-none absolute inset-0 flex items-center justify-center text-faint">No run has ended in this window. A minute is counted after it has ended.</p>}
                <Bars points={points} step={series.step_seconds} most={most} lane={lane} />
              </div>
              <div className="flex justify-between text-2xs text-faint">
                <span>{axisText(from, zone, seconds)}</span>
                <span>{nothing ? `one bar is ${formatDuration(series.step_seconds)}` : `at most ${formatCount(most)} in ${formatDuration(series.step_seconds)}`}</span>
                <span>{axisText(new Date(to).toISOString(), zone, seconds)}</span>
              </div>
              <Totals points={points} runs={`/runs?children=yes&from=${from}&before=${new Date(to).toISOString()}${lane === undefined ? '' : `&lane=${encodeURIComponent(lane)}`}`} />
              {series.counted_until !== null && !series.complete && <p className="text-2xs text-faint">Counted until {formatClock(series.counted_until, zone)}; a minute is counted after it has ended.</p>}
            </div>
          )
        }}
      </Loaded>
    </Panel>
  )
}
