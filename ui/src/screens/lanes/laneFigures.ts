/* What the lanes did in the last hour: runs that ended, and how long runs waited before they started. */
import { useMemo } from 'react'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { serverNow } from '@/format/time'
import { everyBucket } from '@/screens/overview/buckets'

const HOUR_MS = 3_600_000
const STEP_SECONDS = 300

export interface LaneFigures {
  /** Runs that ended in each five minutes. */
  ended: number[]
  total: number
  /** The highest 95th percentile of the five minutes; null if no run started. */
  wait: number | null
}

export function useLaneFigures(): ReadonlyMap<string, LaneFigures> | null {
  const to = Math.ceil(serverNow() / (STEP_SECONDS * 1_000)) * STEP_SECONDS * 1_000
  const range = { from: new Date(to - HOUR_MS).toISOString(), to: new Date(to).toISOString(), step: STEP_SECONDS, group: 'lane' as const }
  const query = useApi('/api/v2/runs/series', { query: { ...useTenantParam(), ...range } }, { topics: ['runs'], staleMs: 15_000, keep: true })
  return useMemo(() => {
    if (query.data === undefined) return null
    return new Map(
      query.data.groups.map((group) => {
        const points = everyBucket(group.points, to - HOUR_MS, to, STEP_SECONDS)
        const ended = points.map((point) => point.completed + point.failed + point.cancelled)
        const waits = group.points.flatMap((point) => point.wait_p95_seconds ?? [])
        return [group.name, { ended, total: ended.reduce((sum, count) => sum + count, 0), wait: waits.length === 0 ? null : Math.max(...waits) }]
      }),
    )
  }, [query.data, to])
}
