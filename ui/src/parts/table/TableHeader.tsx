/* Column titles with a handle to resize each, and the choice of all rows. */
import { type PointerEvent, useRef } from 'react'
import { cx } from '../classes'
import type { Column, Columns } from './columns'
import type { Selection } from './selection'

interface TableHeaderProps<Row> {
  columns: Column<Row>[]
  model: Columns<Row>
  template: string
  selection?: Selection
  ids: () => string[]
  actions: boolean
}

function Handle({ onResize, title }: { onResize: (width: number) => void; title: string }) {
  const start = useRef<{ x: number; width: number } | null>(null)
  const down = (event: PointerEvent<HTMLSpanElement>) => {
    const cell = event.currentTarget.parentElement!
    start.current = { x: event.clientX, width: cell.getBoundingClientRect().width }
    event.currentTarget.setPointerCapture(event.pointerId)
  }
  const move = (event: PointerEvent<HTMLSpanElement>) => {
    if (start.current !== null) onResize(start.current.width + event.clientX - start.current.x)
  }
  return (
    <span
      title={`Resize ${title}`}
      onPointerDown={down}
      onPointerMove={move}
      onPointerUp={() => {
        start.current = null
      }}
      className="absolute top-1 right-0 h-5 w-1.5 cursor-col-resize rounded-sm hover:bg-line-strong"
    />
  )
}

export function TableHeader<Row>({ columns, model, template, selection, ids, actions }: TableHeaderProps<Row>) {
  const all = selection === undefined ? [] : ids()
  const every = selection !== undefined && all.length > 0 && all.every((id) => selection.has(id))
  return (
    <div role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }} className="sticky top-0 z-20 grid h-7.5 items-center border-b border-line bg-surface text-2xs font-medium text-faint">
      {selection !== undefined && (
        <div role="columnheader" className="flex justify-center">
          <input
            type="checkbox"
            aria-label="Select all loaded rows"
            checked={every}
            onChange={() => (every ? selection.clear() : selection.add(all))}
            className="size-4 accent-accent"
          />
        </div>
      )}
      {columns.map((column) => (
        <div key={column.id} role="columnheader" className={cx('relative flex h-full min-w-0 items-center px-2', column.align === 'right' && 'justify-end')}>
          <span className="truncate">{column.title}</span>
          <Handle title={column.title} onResize={(width) => model.resize(column.id, width)} />
        </div>
      ))}
      {actions && (
        <div role="columnheader">
          <span className="sr-only">Actions</span>
        </div>
      )}
    </div>
  )
}
