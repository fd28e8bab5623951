/* The slowest database statements of every serving process within the last hour. */
import type { components } from '@/api/schema'
import { formatDuration } from '@/format/duration'
import { formatCount } from '@/format/number'
import { shortId, visible } from '@/format/text'
import { Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import { slowStatements } from './slow'

export function SlowStatements({ servers }: { servers: components['schemas']['ServerReplica'][] }) {
  const slow = slowStatements(servers)
  return (
    <Panel title="Slowest statements" flush={slow.length > 0}>
      {slow.length === 0 ? (
        <p className="text-soft">No list, and no other statement of a serving process, has taken 0.1 s or longer in the last hour.</p>
      ) : (
        <table aria-label="Slowest statements" className="w-full text-left">
          <thead>
            <tr className="border-b border-line text-2xs text-faint">
              <th scope="col" className="px-3 py-1.5 font-medium">Statement</th>
              <th scope="col" className="px-3 py-1.5 text-right font-medium">Longest</th>
              <th scope="col" className="px-3 py-1.5 text-right font-medium">0.1 s or longer</th>
              <th scope="col" className="px-3 py-1.5 font-medium">At</th>
              <th scope="col" className="px-3 py-1.5 font-medium max-md:hidden">Process</th>
            </tr>
          </thead>
          <tbody>
            {slow.map((one) => (
              <tr key={`${one.server} ${one.name}`} className="border-b border-line last:border-b-0">
                <th scope="row" className="px-3 py-1.5 font-mono text-xs font-normal break-all">{visible(one.name)}</th>
                <td className="tabular px-3 py-1.5 text-right">{formatDuration(one.seconds)}</td>
                <td className="tabular px-3 py-1.5 text-right">{formatCount(one.count)}</td>
                <td className="px-3 py-1.5"><Time at={one.at} style="relative" /></td>
                <td className="px-3 py-1.5 font-mono text-xs max-md:hidden" title={one.server}>{shortId(one.server)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  )
}
