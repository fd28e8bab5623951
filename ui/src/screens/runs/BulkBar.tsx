/* What can be done with the selected rows, or with everything that matches the filter. */
import { X } from 'lucide-react'
import { useState } from 'react'
import type { RunSummary } from '@/api/types'
import { plural } from '@/format/number'
import { Button } from '@/parts/Button'
import type { Selection } from '@/parts/table/selection'
import { BULK_LABELS, type BulkName } from './bulk'
import { BulkDialog } from './BulkDialog'
import type { BulkFilter } from './filters'

interface BulkBarProps {
  selection: Selection
  rows: RunSummary[]
  filter: BulkFilter
}

export function BulkBar({ selection, rows, filter }: BulkBarProps) {
  const [everything, setEverything] = useState(false)
  const [action, setAction] = useState<BulkName | null>(null)
  const chosen = rows.filter((run) => selection.has(run.run_id))
  const clear = () => {
    setEverything(false)
    selection.clear()
  }
  return (
    <div role="toolbar" aria-label="Selected runs" className="flex flex-wrap items-center gap-1.5 border-b border-line bg-selected px-3 py-1.5">
      <span className="mr-2 font-medium">{everything ? 'All runs that match the filter' : `${plural(selection.ids.size, 'run')} selected`}</span>
      {!everything && selection.ids.size >= rows.length && (
        <Button small look="quiet" onClick={() => setEverything(true)}>
          Select all that match the filter
        </Button>
      )}
      {(Object.keys(BULK_LABELS) as BulkName[]).map((name) => (
        <Button key={name} small look={name === 'cancel' ? 'danger' : 'normal'} onClick={() => setAction(name)}>
          {BULK_LABELS[name]}
        </Button>
      ))}
      <Button small look="quiet" icon={X} onClick={clear}>
        Clear
      </Button>
      {action !== null && (
        <BulkDialog
          action={action}
          selected={everything ? { filter } : { ids: chosen.map((run) => run.run_id), statuses: chosen.map((run) => run.status) }}
          onClose={() => setAction(null)}
          onStarted={clear}
        />
      )}
    </div>
  )
}
