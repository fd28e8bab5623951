/* The attempts: worker, times, outcome, and the error with its traceback. */
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { Attempt, Run } from '@/api/types'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Status } from '@/parts/Status'
import { Elapsed, Time } from '@/parts/Time'
import { RunError } from '../header/RunError'

function AttemptCard({ attempt }: { attempt: Attempt }) {
  return (
    <li className="rounded-lg border border-line bg-surface">
      <div className="flex flex-wrap items-center gap-x-5 gap-y-1 px-3 py-2">
        <h3 className="font-semibold">Attempt {attempt.attempt}</h3>
        <Status value={attempt.outcome ?? 'running'} />
        <span className="text-soft">
          <Time at={attempt.started_at} /> for <Elapsed from={attempt.started_at} to={attempt.ended_at} />
        </span>
        {attempt.worker_id !== null && (
          <Link href={`/workers?worker=${attempt.worker_id}`} className="font-mono text-xs text-accent hover:underline">
            {attempt.worker_id}
          </Link>
        )}
        {attempt.outcome === 'lost' && <span className="text-bad">The worker died or was cut off. Another one continued after the last recorded step.</span>}
      </div>
      {attempt.error !== null && (
        <div className="border-t border-line px-3 py-2">
          <RunError error={attempt.error} />
        </div>
      )}
    </li>
  )
}

export function AttemptsTab({ run }: { run: Run }) {
  const query = useApi('/api/v2/runs/{run_id}/attempts', { path: { run_id: run.run_id } }, { topics: ['runs'], runId: run.run_id })
  return (
    <Loaded query={query}>
      {({ attempts }) =>
        attempts.length === 0 ? (
          <Empty title="No attempt yet">An attempt begins when a worker claims the run.</Empty>
        ) : (
          <ol className="flex flex-col gap-2 p-3">
            {attempts.map((attempt) => (
              <AttemptCard key={attempt.attempt} attempt={attempt} />
            ))}
          </ol>
        )
      }
    </Loaded>
  )
}
