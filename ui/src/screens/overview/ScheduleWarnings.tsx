/* Schedules that do not fire as they should. */
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { visible } from '@/format/text'

const SHOWN = 3

export function ScheduleWarnings() {
  const query = useApi('/api/v2/schedules', { query: { ...useTenantParam(), limit: 100 } }, { topics: ['schedules'], staleMs: 30_000 })
  const warned = (query.data?.schedules ?? []).filter((schedule) => schedule.warnings.length > 0)
  if (warned.length === 0) return null
  return (
    <div role="status" className="rounded-lg border border-line bg-wait-soft px-3 py-2 text-wait">
      {warned.slice(0, SHOWN).map((schedule) => (
        <p key={schedule.id} className="break-words">
          <Link href={`/schedules/${encodeURIComponent(schedule.id)}`} className="font-medium underline">
            {visible(schedule.name || schedule.id)}
          </Link>
          : {visible(schedule.warnings[0] ?? '')}
        </p>
      ))}
      {warned.length > SHOWN && (
        <Link href="/schedules" className="underline">
          {warned.length - SHOWN} more with warnings
        </Link>
      )}
    </div>
  )
}
