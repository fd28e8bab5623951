/* Runs as a file: the server streams everything that matches the filter, up to its bound. */
import { Download } from 'lucide-react'
import { apiUrl, buildPath } from '@/api/client'
import type { RunSummary } from '@/api/types'
import { Menu } from '@/parts/Menu'
import { exportRows } from './exportRows'

interface ExportMenuProps {
  /** The filters of the list, as the API names them. */
  query: Record<string, unknown>
  rows: RunSummary[]
}

// What the server can filter an export by. With another filter only the loaded rows are complete.
const EXPORTABLE = new Set(['status', 'target', 'lane', 'tenant', 'key', 'accepted_from', 'accepted_before', 'tag'])

function download(query: Record<string, unknown>, format: 'csv' | 'jsonl'): void {
  const link = document.createElement('a')
  link.href = apiUrl(buildPath('/api/v2/runs/export', {}, { ...query, format }))
  link.download = `runs.${format}`
  link.click()
}

export function ExportMenu({ query, rows }: ExportMenuProps) {
  const whole = Object.entries(query).every(([name, value]) => value === undefined || EXPORTABLE.has(name))
  const reason = whole ? null : 'The server cannot filter an export by these properties.'
  return (
    <Menu
      label="Export"
      icon={Download}
      items={[
        { label: 'CSV of all that match', refused: reason, onSelect: () => download(query, 'csv') },
        { label: 'JSON lines of all that match', refused: reason, onSelect: () => download(query, 'jsonl') },
        'line',
        { label: `CSV of the ${rows.length} loaded runs`, onSelect: () => exportRows(rows, 'csv') },
        { label: `JSON lines of the ${rows.length} loaded runs`, onSelect: () => exportRows(rows, 'jsonl') },
      ]}
    />
  )
}
