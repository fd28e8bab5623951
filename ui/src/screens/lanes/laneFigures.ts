/* What the lanes did in the last hour: runs that were accepted, started and ended, and how long runs waited. */
import { useMemo } from 'react'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { serverNow } from '@/format/time'
import { everyBucket, type Point } from '@/screens/overview/buckets'

const HOUR_MS = 3_600_000
const STEP_SECONDS = 300

export interface Rate {
  /** Runs in each five minutes. */
  counts: number[]
  /** Runs per minute in the last five to ten minutes. */
  perMinute: number
}

export interface LaneFigures {
  accepted: Rate
  started: Rate
  ended: Rate
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
        const rate = (of: (point: Point) => number): Rate => {
          const counts = points.map(of)
          return { counts, perMinute: counts.slice(first).reduce((sum, count) => sum + count, 0) / minutes }
        }
        const waits = group.points.flatMap((point) => point.wait_p95_seconds ?? [])
        return [
          group.name,
          {
            accepted: rate((point) => point.accepted),
            started: rate((point) => point.started),
            ended: rate((point) => point.completed + point.failed + point.cancelled),
            wait: waits.length === 0 ? null : Math.max(...waits),
          },
        ]
      }),
    )
  }, [query.data, to])
}
