/* The size of the database and of its tables. */
import { useApi } from '@/api/query'
import { asCli } from '@/format/command'
import { formatBytes, formatCount, plural } from '@/format/number'
import { visible } from '@/format/text'
import { CopyRead } from '@/parts/CopyRead'
import { Loaded } from '@/parts/Loading'
import { Meter } from '@/parts/Meter'
import { Panel } from '@/parts/Panel'

/** How many tables are listed at once; smaller ones are folded. */
const SHOWN = 10

export function DatabaseSize() {
  const query = useApi('/api/v2/doctor/database', {}, { staleMs: 60_000 })
  return (
    <Panel title="Database" actions={<CopyRead path="/api/v2/doctor/database" cli={asCli('db', 'size')} />}>
      <Loaded query={query} rows={4}>
        {({ bytes, tables, note }) => (
          <>
            <p>{formatBytes(bytes)} in total.{note !== null && ` ${note}`}</p>
            {tables !== null && <Tables tables={tables.slice(0, SHOWN)} most={tables[0]?.bytes ?? 1} label="Largest tables" />}
            {tables !== null && tables.length > SHOWN && (
              <details className="mt-2">
                <summary className="w-fit text-soft">{plural(tables.length - SHOWN, 'smaller table')}</summary>
                <Tables tables={tables.slice(SHOWN)} most={tables[0]!.bytes} label="Smaller tables" />
              </details>
            )}
          </>
        )}
      </Loaded>
    </Panel>
  )
}

function Tables({ tables, most, label }: { tables: { name: string; bytes: number; rows: number | null }[]; most: number; label: string }) {
  const counted = tables.some((table) => table.rows !== null)
  return (
    <table aria-label={label} className="mt-2 w-full max-w-160 text-left">
      <thead>
        <tr className="border-b border-line text-2xs text-faint">
          <th scope="col" className="py-1 font-medium">Table</th>
          <th scope="col" className="py-1 font-medium">Size with indexes</th>
          {counted && <th scope="col" className="py-1 text-right font-medium">Rows, about</th>}
        </tr>
      </thead>
      <tbody>
        {tables.map((table) => (
          <tr key={table.name} className="border-b border-line last:border-b-0">
            <th scope="row" className="py-1 pr-3 font-mono text-xs font-normal">{visible(table.name)}</th>
            <td className="py-1"><Meter label={`Size of ${table.name}`} value={table.bytes} max={most} text={formatBytes(table.bytes)} /></td>
            {counted && <td className="tabular py-1 text-right">{table.rows === null ? '–' : formatCount(table.rows)}</td>}
          </tr>
        ))}
      </tbody>
    </table>
  )
}
