/* Why a run failed, with the way to its traceback and to every other failure with the same cause. */
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { Run } from '@/api/types'
import { formatCount } from '@/format/number'
import { RunError } from './RunError'

const LINK = 'text-accent underline'

/** Other failures with the same cause, where one click replays all of them. */
function SameCause({ fingerprint }: { fingerprint: string }) {
  const query = useApi('/api/v2/dead-letters/groups', { query: { fingerprint } }, { topics: ['dead_letters'] })
  const count = query.data?.groups[0]?.count ?? 0
  if (count === 0) return null
  return (
    <Link href={`/dead-letters?fingerprint=${encodeURIComponent(fingerprint)}`} className={LINK}>
      {count === 1 ? 'The only open failure with this cause' : `All ${formatCount(count)} open failures with this cause`}
    </Link>
  )
}

export function FailureNote({ run, error }: { run: Run; error: Record<string, unknown> }) {
  const letter = useApi('/api/v2/dead-letters/{run_id}', { path: { run_id: run.run_id } }, { topics: ['dead_letters'] }).data
  return (
    <div role="alert" className="rounded-md border border-line bg-bad-soft px-3 py-1.5">
      <RunError error={error} brief />
      <p className="mt-1 flex flex-wrap gap-x-4 text-xs">
        <Link href={`/runs/${run.run_id}?tab=attempts`} className={LINK}>Attempts and traceback</Link>
        {letter !== undefined && <Link href={`/dead-letters/${run.run_id}`} className={LINK}>Dead letter</Link>}
        {letter !== undefined && <SameCause fingerprint={letter.fingerprint} />}
      </p>
    </div>
  )
}
