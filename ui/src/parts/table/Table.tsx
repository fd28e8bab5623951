/* The one table. Rows are virtual, real links, selectable with Shift, and cards on a narrow screen. */
import { useVirtualizer } from '@tanstack/react-virtual'
import { type ReactNode, useRef } from 'react'
import { useMedia } from '@/app/media'
import { cx } from '../classes'
import type { Column } from './columns'
import { templateOf, useColumns } from './columns'
import { TableHeader } from './TableHeader'
import { TableRow } from './TableRow'
import type { Selection } from './selection'
import { useRowKeys } from './rowKeys'

interface TableProps<Row> {
  /** Names the stored choice of columns. */
  name: string
  label: string
  columns: Column<Row>[]
  rows: Row[]
  id: (row: Row) => string
  /** Where a row leads. */
  link?: (row: Row) => string
  selection?: Selection
  /** A menu at the end of each row. */
  actions?: (row: Row) => ReactNode
  /** What follows the rows: a button for the next page, a note about what was cut. */
  footer?: ReactNode
  /** Rows in total when more exist than are loaded. */
  total?: number
  /** Grow with the content instead of filling the parent. */
  inline?: boolean
  dimmed?: (row: Row) => boolean
}

const ROW_HEIGHT = 32
const CARD_HEIGHT = 96

export function Table<Row>({ name, label, columns, rows, id, link, selection, actions, footer, total, inline = false, dimmed }: TableProps<Row>) {
  const scroller = useRef<HTMLDivElement>(null)
  const narrow = useMedia('(max-width: 599px)')
  const model = useColumns(name, columns)
  const shown = narrow ? model.shown.filter((column) => column.wideOnly !== true) : model.shown
  const template = templateOf(shown, model.choice, selection !== undefined, actions !== undefined)
  const virtualizer = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => (narrow ? CARD_HEIGHT : ROW_HEIGHT),
    getItemKey: (index) => id(rows[index]!),
    overscan: 12,
  })
  const keys = useRowKeys(scroller, rows.length, (index) => virtualizer.scrollToIndex(index), (index) => selection?.toggle(id(rows[index]!), false))

  return (
    <div
      ref={scroller}
      role="grid"
      aria-label={label}
      aria-rowcount={(total ?? rows.length) + 1}
      aria-multiselectable={selection === undefined ? undefined : true}
      tabIndex={0}
      onKeyDown={keys.onKeyDown}
      className={cx('relative min-w-0 overflow-auto outline-offset-[-2px]', inline ? 'max-h-[70vh]' : 'min-h-0 flex-1')}
    >
      <div className="w-max min-w-full">
        {!narrow && (
          <TableHeader columns={shown} model={model} template={template} selection={selection} ids={() => rows.map(id)} actions={actions !== undefined} />
        )}
        <div role="rowgroup" style={{ height: virtualizer.getTotalSize(), position: 'relative' }}>
          {virtualizer.getVirtualItems().map((item) => {
            const row = rows[item.index]!
            return (
              <TableRow
                key={item.key}
                ref={narrow ? virtualizer.measureElement : undefined}
                index={item.index}
                top={item.start}
                height={narrow ? undefined : ROW_HEIGHT}
                template={template}
                columns={shown}
                row={row}
                id={id(row)}
                href={link?.(row)}
                selection={selection}
                range={(from, to) => rows.slice(Math.min(from, to), Math.max(from, to) + 1).map(id)}
                indexOf={(wanted) => rows.findIndex((candidate) => id(candidate) === wanted)}
                actions={actions?.(row)}
                active={keys.active === item.index}
                dimmed={dimmed?.(row) ?? false}
              />
            )
          })}
        </div>
      </div>
      {footer !== undefined && <div className="sticky left-0 flex flex-wrap items-center gap-2 px-3 py-2 text-soft">{footer}</div>}
    </div>
  )
}
