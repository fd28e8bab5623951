/* The model of a long run, from the timeline of the server: thousands of events are not transferred to open a page. */
import type { ResponseOf } from '@/api/client'
import { openConversation } from './conversation'
import { stepIdOf } from './paths'
import { emptyModel, type RunModel, type Span, type SpanKind } from './types'

type Timeline = ResponseOf<'/api/v2/runs/{run_id}/timeline', 'get'>
type ServerSpan = Timeline['spans'][number]
type Attempts = ResponseOf<'/api/v2/runs/{run_id}/attempts', 'get'>['attempts']

const TALKS = new Set(['llm', 'agent', 'tool', 'evaluator'])

function kindOf(kind: string): SpanKind {
  if (kind === 'branch' || kind === 'round') return 'part'
  if (kind === 'parallel' || kind === 'loop') return 'group'
  if (kind === 'question' || kind === 'model') return kind
  return 'step'
}

function nameOf(span: ServerSpan): string {
  if (span.kind === 'round') return `round ${span.name}`
  if (span.kind === 'branch') return `branch ${Number(span.name) + 1}`
  return span.name
}

function spanOf(span: ServerSpan, at: number): Span {
  const start = span.started_at === null ? (span.ended_at === null ? at : Date.parse(span.ended_at)) : Date.parse(span.started_at)
  return {
    id: span.path,
    parent: span.parent === '' ? null : span.parent,
    kind: kindOf(span.kind),
    type: span.kind,
    name: nameOf(span),
    path: span.path,
    start,
    end: span.ended_at === null ? null : Date.parse(span.ended_at),
    outcome: span.outcome,
    attempt: span.attempt,
    cost: span.cost_usd,
    tokens: span.tokens,
    seconds: null,
    tries: span.tries,
    error: null,
    seq: 0,
    children: [],
    hidden: span.collapsed ? { count: span.children, outcomes: span.child_outcomes } : undefined,
  }
}

/** Add spans that the server has returned; those that are known stay as they are. */
export function addSpans(model: RunModel, spans: ServerSpan[], parent: string | null): void {
  const now = Date.now()
  for (const given of spans) {
    if (model.spans.has(given.path)) continue
    const span = spanOf(given, now)
    span.parent ??= parent
    model.spans.set(span.id, span)
    if (span.parent === null) model.roots.push(span.id)
    else model.spans.get(span.parent)?.children.push(span.id)
    if (TALKS.has(given.kind)) openConversation(model, given.path, span.name)
    if (span.kind === 'step' || span.kind === 'group') model.steps.set(stepIdOf(span.id), { count: 1, outcome: span.outcome, path: span.id })
  }
  const opened = parent === null ? undefined : model.spans.get(parent)
  if (opened !== undefined) opened.hidden = undefined
}

export function seedModel(timeline: Timeline, attempts: Attempts, first: number, last: number): RunModel {
  const model = emptyModel(first)
  model.last = last
  model.partial = true
  addSpans(model, timeline.spans, null)
  for (const attempt of attempts) {
    if (attempt.started_at === null) continue
    model.attempts.push({
      attempt: attempt.attempt,
      worker: attempt.worker_id ?? '',
      start: Date.parse(attempt.started_at),
      end: attempt.ended_at === null ? null : Date.parse(attempt.ended_at),
      outcome: attempt.outcome ?? 'running',
    })
    model.attempt = Math.max(model.attempt, attempt.attempt)
  }
  return model
}
