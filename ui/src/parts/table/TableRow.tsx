/* One row: a grid of cells, or a card with labels on a narrow screen. The link covers the row. */
import type { ReactNode, Ref } from 'react'
import { Link } from 'wouter'
import { cx } from '../classes'
import type { Column } from './columns'
import type { Selection } from './selection'

interface TableRowProps<Row> {
  ref?: Ref<HTMLDivElement>
  index: number
  top: number
  /** Undefined for a card, whose height is measured. */
  height: number | undefined
  template: string
  columns: Column<Row>[]
  row: Row
  id: string
  href?: string
  selection?: Selection
  range: (from: number, to: number) => string[]
  indexOf: (id: string) => number
  actions?: ReactNode
  active: boolean
  dimmed: boolean
}

export function TableRow<Row>({ ref, index, top, height, template, columns, row, id, href, selection, range, indexOf, actions, active, dimmed }: TableRowProps<Row>) {
  const card = height === undefined
  const selected = selection?.has(id) ?? false
  const select = (shift: boolean) => {
    if (selection === undefined) return
    const last = selection.last === null ? -1 : indexOf(selection.last)
    if (shift && last >= 0) selection.add(range(last, index))
    else selection.toggle(id, shift)
  }
  return (
    <div
      ref={ref}
      role="row"
      data-index={index}
      data-row-id={id}
      aria-rowindex={index + 2}
      aria-selected={selection === undefined ? undefined : selected}
      style={{ position: 'absolute', top: 0, left: 0, right: 0, transform: `translateY(${top}px)`, height, gridTemplateColumns: card ? undefined : template }}
      className={cx(
        'group border-b border-line hover:bg-hover',
        card ? 'flex flex-wrap items-center gap-x-3 gap-y-1 px-3 py-2' : 'grid items-center',
        selected && 'bg-selected',
        active && 'outline-2 outline-offset-[-2px] outline-focus',
        dimmed && 'opacity-60',
      )}
    >
      {selection !== undefined && (
        <div role="gridcell" className="relative z-10 flex h-full items-center justify-center">
          <input
            type="checkbox"
            aria-label={`Select ${id}`}
            checked={selected}
            onChange={() => undefined}
            onClick={(event) => select(event.shiftKey)}
            className="size-4 accent-accent"
          />
        </div>
      )}
      {columns.map((column, at) => (
        <div
          key={column.id}
          role="gridcell"
          className={cx('min-w-0', card ? 'max-w-full' : 'truncate px-2', !card && column.align === 'right' && 'text-right')}
        >
          {card && at > 1 && <span className="mr-1 text-2xs text-faint">{column.title}</span>}
          {at === 0 && href !== undefined ? (
            <Link href={href} draggable={false} tabIndex={-1} data-row-link className="after:absolute after:inset-0 after:content-['']">
              {column.render(row)}
            </Link>
          ) : (
            column.render(row)
          )}
        </div>
      ))}
      {actions !== undefined && (
        <div role="gridcell" className={cx('relative z-10 flex justify-end', card ? 'ml-auto' : 'pr-1')}>
          {actions}
        </div>
      )}
    </div>
  )
}
