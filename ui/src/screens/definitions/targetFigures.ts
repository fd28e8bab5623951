/* How many runs each target had in the last 24 hours, and how many failed. */
import { useMemo } from 'react'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { serverNow } from '@/format/time'

const HOUR_MS = 3_600_000

export interface TargetFigures {
  accepted: number
  ended: number
  failed: number
}

export function useTargetFigures(): ReadonlyMap<string, TargetFigures> | null {
  const to = Math.ceil(serverNow() / HOUR_MS) * HOUR_MS
  const range = { from: new Date(to - 24 * HOUR_MS).toISOString(), to: new Date(to).toISOString(), step: 3_600, group: 'target' as const }
  const query = useApi('/api/v2/runs/series', { query: { ...useTenantParam(), ...range } }, { topics: ['runs'], staleMs: 30_000, keep: true })
  return useMemo(() => {
    if (query.data === undefined) return null
    return new Map(
      query.data.groups.map(({ name, points }) => {
        const sum = (of: (point: (typeof points)[number]) => number) => points.reduce((total, point) => total + of(point), 0)
        return [name, { accepted: sum((point) => point.accepted), ended: sum((point) => point.completed + point.failed + point.cancelled), failed: sum((point) => point.failed) }]
      }),
    )
  }, [query.data])
}
