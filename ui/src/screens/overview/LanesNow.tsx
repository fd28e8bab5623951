/* Lanes with runs: how many run, how many wait, and how long the oldest has waited. */
import { Link } from 'wouter'
import { SLOW_POLL_MS, useApi } from '@/api/query'
import type { Lane } from '@/api/types'
import { formatCount } from '@/format/number'
import { Loaded } from '@/parts/Loading'
import { Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'

function Slots({ lane }: { lane: Lane }) {
  if (lane.max_slots === null) return <span className="text-soft">{formatCount(lane.running)} running</span>
  const share = lane.max_slots === 0 ? 1 : lane.running / lane.max_slots
  return (
    <span className="flex items-center gap-2">
      <span className="h-1.5 w-20 overflow-hidden rounded-full bg-sunken">
        <span className={share >= 1 ? 'block h-full bg-wait' : 'block h-full bg-busy'} style={{ width: `${Math.min(100, share * 100)}%` }} />
      </span>
      <span className="tabular text-soft">
        {lane.running} of {lane.max_slots}
      </span>
    </span>
  )
}

function verdict(lane: Lane): string | null {
  if (!lane.enabled) return 'disabled'
  if (lane.held) return 'held'
  if (lane.max_slots === 0) return 'paused'
  if (lane.max_slots !== null && lane.running >= lane.max_slots && lane.queued > 0) return 'cap reached'
  return null
}

export function LanesNow() {
  const query = useApi('/api/v2/lanes', {}, { topics: ['lanes', 'runs'], pollMs: SLOW_POLL_MS })
  return (
    <Panel title="Lanes now" flush>
      <Loaded query={query} rows={4}>
        {({ lanes }) => (
          <ul className="divide-y divide-line">
            {[...lanes]
              .sort((a, b) => b.running + b.queued - a.running - a.queued)
              .slice(0, 8)
              .map((lane) => (
                <li key={lane.name} className="flex flex-wrap items-center gap-x-4 gap-y-1 px-3 py-1.5">
                  <Link href={`/runs?lane=${encodeURIComponent(lane.name)}&status=queued&status=running&window=all&children=yes`} className="w-28 truncate font-medium hover:underline">
                    {lane.name}
                  </Link>
                  <Slots lane={lane} />
                  {verdict(lane) !== null && <span className="rounded-sm bg-wait-soft px-1 text-xs text-wait">{verdict(lane)}</span>}
                  <span className="ml-auto text-soft">
                    {lane.queued === 0 ? (
                      'none waits'
                    ) : (
                      <>
                        {formatCount(lane.queued)} ready, oldest <Time at={lane.oldest_queued_at} style="relative" />
                      </>
                    )}
                  </span>
                </li>
              ))}
          </ul>
        )}
      </Loaded>
    </Panel>
  )
}
