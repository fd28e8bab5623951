/* Cost or tokens of the runs that ended in each hour of today. */
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { formatCost, formatShort } from '@/format/number'
import { BarChart } from '@/parts/BarChart'
import { Loaded } from '@/parts/Loading'
import { everyBucket } from '@/screens/overview/buckets'

const HOUR_SECONDS = 3_600
const DAY_MS = 86_400_000

/** `day` is a date in UTC. */
export function HourlyChart({ day, tokens }: { day: string; tokens: boolean }) {
  const from = Date.parse(`${day}T00:00:00Z`)
  const query = useApi('/api/v2/runs/series', { query: { ...useTenantParam(), from: new Date(from).toISOString(), to: new Date(from + DAY_MS).toISOString(), step: HOUR_SECONDS } }, { topics: ['runs'], staleMs: 30_000, keep: true })
  return (
    <Loaded query={query} rows={5}>
      {({ groups }) => {
        const points = everyBucket(groups[0]?.points ?? [], from, from + DAY_MS, HOUR_SECONDS)
        const bars = points.map((point) => ({ key: point.at.slice(11, 16), value: tokens ? point.tokens : point.cost_usd }))
        return <BarChart label={`${tokens ? 'Tokens' : 'Cost'} of the runs that ended in each hour, UTC`} bars={bars} format={tokens ? formatShort : formatCost} />
      }}
    </Loaded>
  )
}
