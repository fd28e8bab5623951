/* What the lanes did in the last hour: runs that were accepted and ended, and how long runs waited before they started. */
import { useMemo } from 'react'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { serverNow } from '@/format/time'
import { everyBucket } from '@/screens/overview/buckets'

const HOUR_MS = 3_600_000
const STEP_SECONDS = 300

export interface LaneFigures {
  /** Runs that were accepted, and that ended, in each five minutes. */
  accepted: number[]
  ended: number[]
  /** Runs per minute in the last five to ten minutes. */
  acceptedRate: number
  endedRate: number
  /** The highest 95th percentile of the five minutes; null if no run started. */
  wait: number | null
}

export function useLaneFigures(): ReadonlyMap<string, LaneFigures> | null {
  const to = Math.ceil(serverNow() / (STEP_SECONDS * 1_000)) * STEP_SECONDS * 1_000
  const range = { from: new Date(to - HOUR_MS).toISOString(), to: new Date(to).toISOString(), step: STEP_SECONDS, group: 'lane' as const }
  const query = useApi('/api/v2/runs/series', { query: { ...useTenantParam(), ...range } }, { topics: ['runs'], staleMs: 15_000, keep: true })
  return useMemo(() => {
    if (query.data === undefined) return null
    const counted = query.data.counted_until === null ? to : Date.parse(query.data.counted_until)
    // The last five minutes that are counted to their end, and what is counted after them.
    const first = Math.max(0, Math.floor((counted - (to - HOUR_MS)) / (STEP_SECONDS * 1_000)) - 1)
    const minutes = Math.max(1, (counted - (to - HOUR_MS)) / 60_000 - (first * STEP_SECONDS) / 60)
    return new Map(
      query.data.groups.map((group) => {
        const points = everyBucket(group.points, to - HOUR_MS, to, STEP_SECONDS)
        const rate = (counts: number[]) => counts.slice(first).reduce((sum, count) => sum + count, 0) / minutes
        const ended = points.map((point) => point.completed + point.failed + point.cancelled)
        const waits = group.points.flatMap((point) => point.wait_p95_seconds ?? [])
        const accepted = points.map((point) => point.accepted)
        return [group.name, { accepted, ended, acceptedRate: rate(accepted), endedRate: rate(ended), wait: waits.length === 0 ? null : Math.max(...waits) }]
      }),
    )
  }, [query.data, to])
}
