/* Loaded rows as a file. Cells that a spreadsheet would execute get an apostrophe. */
import type { RunSummary } from '@/api/types'

const FIELDS = ['run_id', 'target', 'status', 'lane', 'tenant', 'accepted_at', 'started_at', 'ended_at', 'tries', 'priority', 'ordering_key', 'worker_id', 'total_cost_usd', 'tags'] as const

export function csvCell(value: unknown): string {
  const text = value === null || value === undefined ? '' : Array.isArray(value) ? value.join(' ') : String(value)
  const safe = typeof value !== 'number' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

export function toCsv(rows: RunSummary[]): string {
  const lines = rows.map((row) => FIELDS.map((field) => csvCell(row[field])).join(','))
  return [FIELDS.join(','), ...lines].join('\r\n')
}

export function download(name: string, text: string, type: 'text/plain' | 'application/json' | 'text/csv'): void {
  const url = URL.createObjectURL(new Blob([text], { type }))
  const link = document.createElement('a')
  link.href = url
  link.download = name
  link.click()
  URL.revokeObjectURL(url)
}

export function exportRows(rows: RunSummary[], format: 'csv' | 'jsonl'): void {
  if (format === 'csv') download('runs.csv', toCsv(rows), 'text/csv')
  else download('runs.jsonl', rows.map((row) => JSON.stringify(row)).join('\n'), 'text/plain')
}
