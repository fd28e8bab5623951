/* The most frequent causes of failures. */
import { CircleCheck } from 'lucide-react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { formatCount } from '@/format/number'
import { oneLine } from '@/format/text'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'

export function Errors() {
  const tenant = useTenantParam()
  const query = useApi('/api/v2/dead-letters/groups', { query: { ...tenant, limit: 5 } }, { topics: ['dead_letters'] })
  return (
    <Panel title="Failures by cause" flush>
      <Loaded query={query} rows={4}>
        {({ groups }) =>
          groups.length === 0 ? (
            <Empty icon={CircleCheck} title="No open failure">
              Runs that fail after their last attempt are grouped here by their cause.
            </Empty>
          ) : (
            <ul className="divide-y divide-line">
              {groups.map((group) => (
                <li key={group.fingerprint} className="flex items-center gap-3 px-3 py-1.5">
                  <span className="tabular w-10 shrink-0 text-right text-lg font-semibold text-bad">{formatCount(group.count)}</span>
                  <Link href={`/dead-letters?fingerprint=${encodeURIComponent(group.fingerprint)}`} className="min-w-0 flex-1 hover:underline">
                    <span className="block truncate">{oneLine(group.sample.message, 160)}</span>
                    <span className="block truncate text-xs text-faint">
                      {group.targets.join(', ')}, last <Time at={group.last_died_at} style="relative" />
                    </span>
                  </Link>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
    </Panel>
  )
}
