/* The head of a run: target, status, what it took, why it waits, and what can be done. */
import { ChevronRight } from 'lucide-react'
import type { ReactNode } from 'react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import { hasSteps, type Run, targetParts } from '@/api/types'
import { useNow } from '@/app/clock'
import { formatDuration } from '@/format/duration'
import { formatCost, formatCount } from '@/format/number'
import { secondsBetween } from '@/format/time'
import { CopyIconButton } from '@/parts/Copy'
import { Status } from '@/parts/Status'
import { Elapsed, Time } from '@/parts/Time'
import { Tag, Target } from '@/screens/runs/runColumns'
import { isEnded } from '@/text/status'
import type { RunStore } from '../model/store'
import { Ancestors } from './Ancestors'
import { FailureNote } from './FailureNote'
import { Relations } from './Relations'
import { RunButtons } from './RunButtons'
import { WhyItWaits } from './WhyItWaits'

function Fact({ term, children, wide = false }: { term: string; children: ReactNode; wide?: boolean }) {
  return (
    <div className={wide ? 'min-w-0' : 'shrink-0'}>
      <dt className="text-2xs text-faint">{term}</dt>
      <dd className="flex min-h-5 min-w-0 items-center gap-1">{children}</dd>
    </div>
  )
}

/** Seconds in which a worker executed it, and seconds in which it waited. */
function useSplitTime(run: Run, store: RunStore): { running: number; waiting: number } {
  const open = !isEnded(run.status)
  const now = useNow(open)
  const end = run.ended_at === null ? now : Date.parse(run.ended_at)
  const running = store.model.attempts.reduce((sum, band) => sum + Math.max(0, Math.min(band.end ?? end, end) - band.start), 0) / 1_000
  const whole = secondsBetween(run.accepted_at, run.ended_at, now) ?? 0
  return { running, waiting: Math.max(0, whole - running) }
}

function Usage({ run }: { run: Run }) {
  const usage = useApi('/api/v2/runs/{run_id}/status', { path: { run_id: run.run_id } }, { topics: ['runs'], runId: run.run_id })
  return (
    <>
      <Fact term="Cost">
        <span className="tabular">{formatCost(usage.data?.total_cost_usd)}</span>
      </Fact>
      <Fact term="Tokens">
        <span className="tabular">{formatCount(usage.data?.total_tokens_used)}</span>
      </Fact>
    </>
  )
}

function definitionPath(run: Run): string | null {
  const { kind, name } = targetParts(run.target)
  if (kind !== 'orchestration' && kind !== 'agent') return null
  const version = run.definition === null ? '' : `?version=${run.definition}`
  return `/definitions/${kind}s/${encodeURIComponent(name)}${version}`
}

export function RunHeader({ run, store }: { run: Run; store: RunStore }) {
  const { running, waiting } = useSplitTime(run, store)
  const definition = definitionPath(run)
  const cancelling = run.cancel_requested_at !== null && !isEnded(run.status)
  return (
    <header className="flex flex-col gap-2 px-3 pt-3 pb-2 md:px-4">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-2">
        <nav aria-label="Place of the run" className="flex min-w-0 items-center gap-1 text-soft">
          <Link href="/runs" className="hover:underline">
            Runs
          </Link>
          {run.parent !== null && <Ancestors parent={run.parent} depth={1} />}
          <ChevronRight size={13} aria-hidden />
        </nav>
        <h1 className="flex min-w-0 items-center gap-2 text-lg font-semibold">
          {definition === null ? (
            <Target target={run.target} />
          ) : (
            <Link href={definition} className="min-w-0 hover:underline">
              <Target target={run.target} />
            </Link>
          )}
        </h1>
        <Status value={cancelling ? 'cancelling' : run.status} />
        <span className="flex items-center gap-0.5">
          <code className="font-mono text-xs break-all text-soft">{run.run_id}</code>
          <CopyIconButton text={run.run_id} label="Copy the id" />
        </span>
        <div className="ml-auto">
          <RunButtons run={run} />
        </div>
      </div>
      <dl className="flex flex-wrap gap-x-6 gap-y-1.5">
        <Fact term="Accepted">
          <Time at={run.accepted_at} />
        </Fact>
        <Fact term="Started">
          <Time at={run.started_at} />
        </Fact>
        <Fact term={isEnded(run.status) ? 'Ended' : 'Open for'}>{isEnded(run.status) ? <Time at={run.ended_at} /> : <Elapsed from={run.accepted_at} to={null} />}</Fact>
        <Fact term="Running">
          <span className="tabular">{formatDuration(running)}</span>
        </Fact>
        <Fact term="Waiting">
          <span className="tabular">{formatDuration(waiting)}</span>
        </Fact>
        <Fact term="Tries">
          <span className="tabular">
            {run.tries} of {run.max_attempts}
          </span>
          {run.losses > 0 && <span className="text-bad">({run.losses} lost)</span>}
        </Fact>
        {hasSteps(run.target) && <Usage run={run} />}
        <Fact term="Lane">
          <Link href={`/lanes/${encodeURIComponent(run.lane)}`} className="text-accent hover:underline">
            {run.lane}
          </Link>
        </Fact>
        <Fact term="Priority">
          <span className="tabular">{run.priority}</span>
        </Fact>
        {run.ordering_key !== null && (
          <Fact term="Key">
            <Link href={`/runs?key=${encodeURIComponent(run.ordering_key)}&window=all&children=yes`} className="max-w-60 truncate text-accent hover:underline">
              {run.ordering_key}
            </Link>
          </Fact>
        )}
        {run.tags.length > 0 && (
          <Fact term="Tags" wide>
            {run.tags.map((tag) => (
              <Link key={tag} href={`/runs?tag=${encodeURIComponent(tag)}&window=all&children=yes`}>
                <Tag name={tag} />
              </Link>
            ))}
          </Fact>
        )}
        <Relations run={run} />
      </dl>
      {run.error !== null && run.status === 'failed' && (
        <FailureNote run={run} error={run.error} />
      )}
      <WhyItWaits run={run} />
    </header>
  )
}
