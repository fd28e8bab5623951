/* The graph of the text as it is written. While the text has errors, the last valid graph stays, greyed. */
import { useState } from 'react'
import { cx } from '@/parts/classes'
import { GraphCanvas, type GraphStep } from '@/screens/run/graph/lazyCanvas'
import type { Checked, Graph } from './useCheck'

export function TextGraph({ checked, selected, onSelect }: { checked: Checked; selected: string | null; onSelect: (step: string) => void }) {
  const [shown, setShown] = useState<Graph | null>(checked.graph)
  if (checked.graph !== null && checked.graph !== shown) setShown(checked.graph)
  const old = checked.state === 'broken' || checked.state === 'invalid' || checked.state === 'unknown'
  if (shown === null) return <p className="p-3 text-soft">{old ? 'The graph appears when the text has no errors.' : 'The server checks the text.'}</p>
  return (
    <div className="relative h-full">
      {old && (
        <p role="status" className="absolute top-2 left-2 z-10 rounded-md border border-line bg-wait-soft px-2 py-1 text-xs text-wait">
          The graph of the last text without errors
        </p>
      )}
      <div data-graph={old ? 'old' : 'current'} className={cx('h-full', old && 'opacity-45')}>
        <GraphCanvas keep id={`${shown.orchestration_id}@${shown.version ?? ''}`} nodes={shown.nodes as GraphStep[]} edges={shown.edges} selected={selected} onSelect={onSelect} />
      </div>
    </div>
  )
}
