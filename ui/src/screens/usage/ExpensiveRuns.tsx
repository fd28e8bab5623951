/* The ended runs whose models cost the most. */
import { Coins } from 'lucide-react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import { formatCost, formatCount } from '@/format/number'
import { shortId } from '@/format/text'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Meter } from '@/parts/Meter'
import { Panel } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import { Time } from '@/parts/Time'

const SHOWN = 10
const COLUMNS = ['Run', 'Target', 'Status', 'Cost', 'Tokens', 'Ended']

export function ExpensiveRuns({ range }: { range: { from: string; to: string; tenant?: string } }) {
  const query = useApi('/api/v2/usage/runs', { query: { ...range, limit: SHOWN } }, { topics: ['runs'], staleMs: 30_000, keep: true })
  return (
    <Panel flush title="Most expensive runs">
      <Loaded query={query} rows={4}>
        {({ runs, complete }) =>
          runs.length === 0 ? (
            <Empty icon={Coins} title="No run with a known cost has ended">Runs of agents and orchestrations are listed here when their models have prices.</Empty>
          ) : (
            <div className="overflow-x-auto" tabIndex={0} role="region" aria-label="Most expensive runs">
              <table className="w-full text-left">
                <thead>
                  <tr className="border-b border-line text-2xs text-faint">
                    {COLUMNS.map((title) => <th key={title} scope="col" className={`px-3 py-1.5 font-medium ${title === 'Tokens' ? 'text-right' : ''}`}>{title}</th>)}
                  </tr>
                </thead>
                <tbody>
                  {runs.map((run) => (
                    <tr key={run.run_id} className="border-b border-line last:border-b-0">
                      <th scope="row" className="px-3 py-1.5 font-normal"><Link href={`/runs/${run.run_id}`} title={run.run_id} className="font-mono text-xs text-accent underline">{shortId(run.run_id)}</Link></th>
                      <td className="max-w-80 truncate px-3 py-1.5">{run.target}</td>
                      <td className="px-3 py-1.5"><Status value={run.status} /></td>
                      <td className="px-3 py-1.5"><Meter label={`Cost of ${run.run_id}`} value={run.cost_usd} max={runs[0]!.cost_usd} text={formatCost(run.cost_usd)} /></td>
                      <td className="tabular px-3 py-1.5 text-right">{formatCount(run.tokens)}</td>
                      <td className="px-3 py-1.5"><Time at={run.ended_at} style="relative" /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
              {!complete && <p className="px-3 py-2 text-soft">Only the most expensive hours of this time were examined. Choose a shorter time for an exact list.</p>}
            </div>
          )
        }
      </Loaded>
    </Panel>
  )
}
