/* The timeline by keyboard: arrows move and fold, Enter opens the inspector, f goes to the next failure. */
import type { KeyboardEvent } from 'react'
import type { TimelineRow } from './rows'

interface Keys {
  rows: TimelineRow[]
  selected: string | null
  onSelect: (id: string | null) => void
  toggle: (id: string) => void
  show: (index: number) => void
}

export function useTimelineKeys({ rows, selected, onSelect, toggle, show }: Keys) {
  return (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const at = rows.findIndex((row) => row.kind === 'span' && row.span.id === selected)
    const go = (to: number, step: 1 | -1) => {
      let index = Math.max(0, Math.min(rows.length - 1, to))
      while (rows[index]?.kind === 'more' && index > 0 && index < rows.length - 1) index += step
      const row = rows[index]
      if (row?.kind !== 'span') return
      onSelect(row.span.id)
      show(index)
    }
    const row = rows[at]
    const current = row?.kind === 'span' ? row : null
    if (event.key === 'ArrowDown' || event.key === 'j') go(at + 1, 1)
    else if (event.key === 'ArrowUp' || event.key === 'k') go(at - 1, -1)
    else if (event.key === 'Home') go(0, 1)
    else if (event.key === 'End') go(rows.length - 1, -1)
    else if (event.key === 'ArrowRight' && current?.folded === true) toggle(current.span.id)
    else if (event.key === 'ArrowLeft' && current !== null) {
      if (current.foldable && !current.folded) toggle(current.span.id)
      else if (current.span.parent !== null) onSelect(current.span.parent)
    } else if (event.key === 'f') {
      const failed = rows.map((candidate, index) => ({ candidate, index })).filter(({ candidate }) => candidate.kind === 'span' && candidate.span.outcome === 'failed')
      const next = failed.find(({ index }) => index > at) ?? failed[0]
      if (next !== undefined) go(next.index, 1)
    } else if (event.key === 'Escape') onSelect(null)
    else return
    event.preventDefault()
  }
}
