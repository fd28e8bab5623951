/* Spans: opening and closing them, and the groups that lie around them. */
import { partsOf, stepIdOf } from './paths'
import type { RunModel, Span, SpanKind } from './types'

interface Opening {
  id: string
  parent: string | null
  kind: SpanKind
  type: string
  name: string
  path: string | null
  at: number
  attempt: number
  seq: number
}

export function openSpan(model: RunModel, opening: Opening): Span {
  const known = model.spans.get(opening.id)
  if (known !== undefined) {
    // The same execution begins again, after a crash or for a retry.
    Object.assign(known, { end: null, outcome: 'running', attempt: opening.attempt, type: opening.type || known.type, name: opening.name || known.name })
    return known
  }
  const span: Span = {
    id: opening.id,
    parent: opening.parent,
    kind: opening.kind,
    type: opening.type,
    name: opening.name,
    path: opening.path,
    start: opening.at,
    end: null,
    outcome: 'running',
    attempt: opening.attempt,
    cost: null,
    tokens: null,
    seconds: null,
    tries: 0,
    error: null,
    seq: opening.seq,
    children: [],
  }
  model.spans.set(span.id, span)
  if (span.parent === null) model.roots.push(span.id)
  else model.spans.get(span.parent)?.children.push(span.id)
  return span
}

/** Open the containers of a path and return the id of the innermost one, or null. */
export function openContainers(model: RunModel, path: string, at: number, attempt: number, seq: number): string | null {
  const parts = partsOf(path).slice(0, -1)
  let parent: string | null = null
  for (const part of parts) {
    const known = model.spans.get(part.id)
    if (known === undefined) {
      const outer: Span | undefined = parent === null ? undefined : model.spans.get(parent)
      const word = part.kind === 'step' ? part.name : outer?.type === 'loop' ? `round ${part.name}` : `branch ${Number(part.name) + 1}`
      openSpan(model, { id: part.id, parent, kind: part.kind === 'part' ? 'part' : 'group', type: '', name: word, path: part.id, at, attempt, seq })
    } else if (known.end !== null && known.kind === 'part') {
      Object.assign(known, { end: null, outcome: 'running' })
    }
    parent = part.id
  }
  return parent
}

export function openStep(model: RunModel, path: string, type: string, name: string, at: number, attempt: number, seq: number, kind: SpanKind = 'step'): Span {
  const parent = openContainers(model, path, at, attempt, seq)
  const span = openSpan(model, { id: path, parent, kind, type, name, path, at, attempt, seq })
  const stepId = stepIdOf(path)
  const known = model.steps.get(stepId)
  model.steps.set(stepId, { count: (known?.count ?? 0) + (known?.path === path ? 0 : 1), outcome: 'running', path })
  const pair = model.lastStep === null ? null : `${model.lastStep}>${stepId}`
  if (pair !== null && model.lastStep !== stepId) model.taken.set(pair, (model.taken.get(pair) ?? 0) + 1)
  model.lastStep = stepId
  return span
}

export function closeSpan(model: RunModel, id: string, at: number, outcome: string): Span | undefined {
  const span = model.spans.get(id)
  if (span === undefined) return undefined
  span.end = Math.max(at, span.start)
  span.outcome = outcome
  for (const child of span.children) {
    const inner = model.spans.get(child)
    if (inner !== undefined && inner.end === null) closeSpan(model, child, at, inner.outcome === 'running' ? outcome : inner.outcome)
  }
  if (span.path !== null && (span.kind === 'step' || span.kind === 'group')) {
    const stepId = stepIdOf(span.path)
    const known = model.steps.get(stepId)
    if (known !== undefined && known.path === span.path) model.steps.set(stepId, { ...known, outcome })
  }
  closeParts(model, span.parent, at)
  return span
}

/** A branch or round ends with its last step; it opens again if another step begins in it. */
function closeParts(model: RunModel, parent: string | null, at: number): void {
  const part = parent === null ? undefined : model.spans.get(parent)
  if (part === undefined || part.kind !== 'part') return
  const children = part.children.map((id) => model.spans.get(id)).filter((child) => child !== undefined)
  if (children.some((child) => child.end === null)) return
  part.end = at
  part.outcome = children.some((child) => child.outcome === 'failed') ? 'failed' : 'done'
}

/** Spans that a lost or ended attempt has left open. */
export function interruptOpen(model: RunModel, at: number, outcome: string): void {
  for (const span of model.spans.values()) {
    if (span.end !== null || span.outcome === 'waiting') continue
    if (outcome === 'lost' || span.kind === 'model' || span.kind === 'tool') {
      span.end = at
      span.outcome = outcome
    }
  }
}
