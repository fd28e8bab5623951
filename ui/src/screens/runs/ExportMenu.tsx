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

function download(query: Record<string, unknown>, format: 'csv' | 'jsonl'): void {
  const link = document.createElement('a')
  link.href = apiUrl(buildPath('/api/v2/runs/export', {}, { ...query, format }))
  link.download = `runs.${format}`
  link.click()
}

export function ExportMenu({ query, rows }: ExportMenuProps) {
  return (
    <Menu
      label="Export"
      icon={Download}
      items={[
        { label: 'CSV of all that match', onSelect: () => download(query, 'csv') },
        { label: 'JSON lines of all that match', onSelect: () => download(query, 'jsonl') },
        'line',
        { label: `CSV of the ${rows.length} loaded runs`, onSelect: () => exportRows(rows, 'csv') },
        { label: `JSON lines of the ${rows.length} loaded runs`, onSelect: () => exportRows(rows, 'jsonl') },
      ]}
    />
  )
}
