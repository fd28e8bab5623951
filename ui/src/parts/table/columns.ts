/* The columns of a table: which are shown, in which order and how wide. The choice stays in this browser. */
import type { ReactNode } from 'react'
import { usePreference } from '@/app/preferences'

export interface Column<Row> {
  id: string
  title: string
  /** Pixels; the least width of a column that grows. */
  width: number
  /** Takes a share of the free width; true is one. */
  grow?: boolean | number
  align?: 'right'
  render: (row: Row) => ReactNode
  /** Shown only when chosen. */
  optional?: boolean
  /** Cannot be hidden. */
  fixed?: boolean
  /** Not shown on narrow screens, where rows are cards. */
  wideOnly?: boolean
}

export interface ColumnChoice {
  shown: string[] | null
  widths: Record<string, number>
}

const NO_CHOICE: ColumnChoice = { shown: null, widths: {} }

export function chosenColumns<Row>(columns: Column<Row>[], choice: ColumnChoice): Column<Row>[] {
  if (choice.shown === null) return columns.filter((column) => column.optional !== true)
  const byId = new Map(columns.map((column) => [column.id, column]))
  const listed = choice.shown.flatMap((id) => byId.get(id) ?? [])
  const missing = columns.filter((column) => column.fixed === true && !listed.includes(column))
  return [...missing, ...listed]
}

export function templateOf<Row>(columns: Column<Row>[], choice: ColumnChoice, selectable: boolean, actions: boolean): string {
  const tracks = columns.map((column) => {
    const width = choice.widths[column.id]
    if (width !== undefined) return `${width}px`
    const share = Number(column.grow ?? 0)
    return share > 0 ? `minmax(${column.width}px, ${share}fr)` : `${column.width}px`
  })
  return [...(selectable ? ['32px'] : []), ...tracks, ...(actions ? ['40px'] : [])].join(' ')
}

export function useColumns<Row>(name: string, columns: Column<Row>[]) {
  const [choice, setChoice] = usePreference<ColumnChoice>(`columns.${name}`, NO_CHOICE)
  const shown = chosenColumns(columns, choice)
  const ids = shown.map((column) => column.id)
  return {
    shown,
    choice,
    toggle: (id: string) => setChoice({ ...choice, shown: ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id] }),
    move: (id: string, by: number) => {
      const at = ids.indexOf(id)
      const to = at + by
      if (at < 0 || to < 0 || to >= ids.length) return
      const next = [...ids]
      next.splice(to, 0, ...next.splice(at, 1))
      setChoice({ ...choice, shown: next })
    },
    resize: (id: string, width: number) => setChoice({ ...choice, widths: { ...choice.widths, [id]: Math.max(48, Math.round(width)) } }),
    reset: () => setChoice(NO_CHOICE),
  }
}

export type Columns<Row> = ReturnType<typeof useColumns<Row>>
