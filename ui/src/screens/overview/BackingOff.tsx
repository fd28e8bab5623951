/* Providers of models that are being left alone for a while. */
import { Link } from 'wouter'
import { SLOW_POLL_MS, useApi } from '@/api/query'
import { serverNow } from '@/format/time'
import { Time } from '@/parts/Time'

export function BackingOff() {
  const query = useApi('/api/v2/limits', {}, { topics: ['limits'], pollMs: SLOW_POLL_MS })
  const now = serverNow()
  const waiting = (query.data?.limits ?? []).filter((limit) => limit.backing_off_until !== null && Date.parse(limit.backing_off_until) > now)
  if (waiting.length === 0) return null
  return (
    <div role="status" className="rounded-lg border border-line bg-wait-soft px-3 py-2 text-wait">
      {waiting.map((limit) => (
        <p key={limit.credential}>
          <Link href="/usage?tab=limits" className="font-medium underline">
            {limit.credential}
          </Link>{' '}
          is not called until <Time at={limit.backing_off_until} />
          {limit.backing_off_reason === null ? '.' : `: ${limit.backing_off_reason}`}
        </p>
      ))}
    </div>
  )
}
