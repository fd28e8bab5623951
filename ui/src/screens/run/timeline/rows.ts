/* The rows of the timeline: the tree of spans, with folded branches, and groups of many parts page by page. */
import type { RunModel, Span } from '../model/types'

export interface SpanRow {
  kind: 'span'
  span: Span
  depth: number
  folded: boolean
  foldable: boolean
  /** Of a group with many parts: the outcomes of them. */
  summary: Record<string, number> | null
}

export interface MoreRow {
  kind: 'more'
  parent: string
  depth: number
  hidden: number
}

export type TimelineRow = SpanRow | MoreRow

const MANY = 20
export const PAGE = 50

export interface Folding {
  /** Spans whose folding differs from the default. */
  toggled: ReadonlySet<string>
  /** Further children that are shown of a group. */
  more: ReadonlyMap<string, number>
  hideDone: boolean
}

function summarize(model: RunModel, span: Span): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const id of span.children) {
    const outcome = model.spans.get(id)?.outcome ?? 'running'
    counts[outcome] = (counts[outcome] ?? 0) + 1
  }
  return counts
}

/** Groups with many parts begin folded; so do the calls of a model, which the conversation shows. */
function foldedAtFirst(span: Span, hideDone: boolean): boolean {
  if (span.children.length > MANY) return true
  return hideDone && span.outcome === 'done'
}

export function timelineRows(model: RunModel, folding: Folding): TimelineRow[] {
  const rows: TimelineRow[] = []
  const walk = (id: string, depth: number) => {
    const span = model.spans.get(id)
    if (span === undefined) return
    const foldable = span.children.length > 0 || span.hidden !== undefined
    const folded = foldable && (span.hidden !== undefined || foldedAtFirst(span, folding.hideDone)) !== folding.toggled.has(id)
    const summary = span.hidden?.outcomes ?? (span.children.length > MANY ? summarize(model, span) : null)
    rows.push({ kind: 'span', span, depth, folded, foldable, summary })
    if (folded) return
    const shown = span.children.length > MANY || span.rest !== undefined ? PAGE + (folding.more.get(id) ?? 0) : span.children.length
    for (const child of span.children.slice(0, shown)) walk(child, depth + 1)
    const hidden = (span.rest?.total ?? span.children.length) - Math.min(shown, span.children.length)
    if (hidden > 0 && span.hidden === undefined) rows.push({ kind: 'more', parent: id, depth: depth + 1, hidden })
  }
  for (const root of model.roots) walk(root, 0)
  return rows
}

/** Time in which something worked. People, timers and events are waited for without a worker. */
export function busyIntervals(model: RunModel, now: number): { start: number; end: number }[] {
  const found: { start: number; end: number }[] = []
  for (const band of model.attempts) found.push({ start: band.start, end: band.end ?? now })
  return found
}
