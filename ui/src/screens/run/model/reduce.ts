/* From events to the model. Events are applied once and in order; unknown types change nothing. */
import { openConversation, recordAnswer, recordCall, recordNote, recordQuestion, recordResult, recordResumed } from './conversation'
import { applyLive } from './liveText'
import { ownerOf } from './paths'
import { closeSpan, interruptOpen, openSpan, openStep } from './spans'
import type { RunEvent, RunModel } from './types'

const text = (value: unknown): string => (typeof value === 'string' ? value : value === null || value === undefined ? '' : JSON.stringify(value))
const number = (value: unknown): number | null => (typeof value === 'number' ? value : null)

function errorText(error: unknown): string {
  if (typeof error === 'object' && error !== null && 'message' in error) return text((error as { message: unknown }).message)
  return text(error)
}

type Rule = (model: RunModel, event: RunEvent, at: number, path: string) => void

const pickedUp: Rule = (model, event, at) => {
  model.attempt = Math.max(model.attempt, event.attempt)
  model.live.clear()
  model.ended = false
  model.attempts.push({ attempt: event.attempt, worker: text(event.worker_id), start: at, end: null, outcome: 'running' })
}

function endAttempt(model: RunModel, at: number, outcome: string): void {
  const band = model.attempts.at(-1)
  if (band === undefined || band.end !== null) return
  band.end = at
  band.outcome = outcome
}

const stepStart: Rule = (model, event, at, path) => {
  openStep(model, path, text(event.step_type), text(event.step_name), at, event.attempt, event.seq ?? 0)
}

function addUsage(model: RunModel, path: string, event: RunEvent): void {
  const span = model.spans.get(path)
  if (span === undefined) return
  const cost = number(event.cost_usd)
  const tokens = number(event.tokens)
  if (cost !== null) span.cost = (span.cost ?? 0) + cost
  if (tokens !== null) span.tokens = (span.tokens ?? 0) + tokens
}

const stepComplete: Rule = (model, event, at, path) => {
  const span = closeSpan(model, path, at, 'done')
  if (span !== undefined) span.seconds = number(event.duration_seconds) ?? span.seconds
  addUsage(model, path, event)
}

const stepError: Rule = (model, event, at, path) => {
  const span = closeSpan(model, path, at, 'failed')
  if (span !== undefined) span.error = errorText(event.error)
  addUsage(model, path, event)
}

const stepRetry: Rule = (model, event, _at, path) => {
  const span = model.spans.get(path)
  if (span === undefined) return
  Object.assign(span, { outcome: 'retrying', tries: number(event.tries) ?? span.tries + 1, error: errorText(event.error) })
  addUsage(model, path, event)
}

const modelRequest: Rule = (model, event, at, path) => {
  const turn = number(event.turn) ?? 0
  openConversation(model, path, text(event.step_name))
  openSpan(model, { id: `${path}#model/${turn}`, parent: path, kind: 'model', type: 'model', name: `turn ${turn}`, path, at, attempt: event.attempt, seq: event.seq ?? 0 })
}

const modelResponse: Rule = (model, event, at, path) => {
  const span = closeSpan(model, `${path}#model/${number(event.turn) ?? 0}`, at, 'done')
  if (span !== undefined) {
    span.name = `${span.name}: ${text(event.model)}`
    span.cost = number(event.cost_usd)
    span.tokens = (number(event.tokens_in) ?? 0) + (number(event.tokens_out) ?? 0)
  }
  recordAnswer(model, event, at, path)
}

const toolExecution: Rule = (model, event, at, path) => {
  openSpan(model, { id: `${path}#call/${text(event.call_id)}`, parent: path, kind: 'tool', type: 'tool', name: text(event.tool_name), path, at, attempt: event.attempt, seq: event.seq ?? 0 })
  recordCall(model, event, at, path)
}

const toolResult: Rule = (model, event, at, path) => {
  const failed = event.failed === true
  closeSpan(model, `${path}#call/${text(event.call_id)}`, at, failed ? 'failed' : 'done')
  recordResult(model, event, at, path)
}

const question: Rule = (model, event, at, path) => {
  const owner = ownerOf(path)
  if (path === owner) {
    const span = model.spans.get(path)
    if (span !== undefined) span.outcome = 'waiting'
  } else {
    const parent = model.spans.has(owner) ? owner : null
    const span = openSpan(model, { id: path, parent, kind: 'question', type: 'question', name: text(event.prompt), path, at, attempt: event.attempt, seq: event.seq ?? 0 })
    span.outcome = 'waiting'
  }
  recordQuestion(model, event, at, path)
}

const paused: Rule = (model, event, at) => {
  endAttempt(model, at, 'paused')
  for (const path of Array.isArray(event.waiting_for) ? event.waiting_for : []) {
    const owner = model.spans.get(ownerOf(text(path)))
    if (owner !== undefined && owner.end === null) owner.outcome = 'waiting'
  }
}

const resumed: Rule = (model, event, at, path) => {
  if (path === '') return
  const owner = model.spans.get(ownerOf(path))
  if (ownerOf(path) !== path) {
    closeSpan(model, path, at, 'done')
    if (owner?.outcome === 'waiting') owner.outcome = 'running'
  }
  recordResumed(model, event, path)
}

const groupStart = (type: string): Rule => (model, event, at, path) => {
  const known = model.spans.get(path)
  if (known !== undefined && known.end === null) {
    known.type = type
    return
  }
  openStep(model, path, type, text(event.orch_step_id), at, event.attempt, event.seq ?? 0, 'group')
}

const groupEnd: Rule = (model, _event, at, path) => void closeSpan(model, path, at, 'done')

const lost: Rule = (model, _event, at) => {
  interruptOpen(model, at, 'lost')
  endAttempt(model, at, 'lost')
  model.live.clear()
}

const done: Rule = (model, event, at) => {
  const status = text(event.status)
  for (const span of model.spans.values()) {
    if (span.end !== null) continue
    span.end = at
    span.outcome = status === 'completed' ? 'done' : status
  }
  endAttempt(model, at, status)
  model.live.clear()
  model.ended = true
}

const RULES: Record<string, Rule> = {
  worker_picked_up: pickedUp,
  step_start: stepStart,
  step_complete: stepComplete,
  step_error: stepError,
  step_retry: stepRetry,
  step_warning: (model, event, at, path) => recordNote(model, event, at, path, text(event.message), 'wait'),
  waiting: (model, event, at, path) => recordNote(model, event, at, path, text(event.reason), 'wait'),
  llm_reasoning: (model, event, at, path) => recordNote(model, event, at, path, text(event.reasoning), 'idle'),
  parallel_start: groupStart('parallel'),
  parallel_complete: groupEnd,
  loop_iteration: groupStart('loop'),
  loop_complete: groupEnd,
  model_request: modelRequest,
  model_response: modelResponse,
  tool_execution: toolExecution,
  tool_result: toolResult,
  human_input_required: question,
  resumed,
  paused,
  attempt_failed: (model, _event, at) => endAttempt(model, at, 'failed'),
  retry_later: (model, _event, at) => endAttempt(model, at, 'retrying'),
  handed_back: (model, _event, at) => endAttempt(model, at, 'released'),
  worker_lost: lost,
  revived: (model) => {
    model.ended = false
  },
  done,
}

const SPOKEN: Record<string, Rule> = {
  model_response: (model, event, at, path) => recordAnswer(model, event, at, path),
  tool_execution: (model, event, at, path) => recordCall(model, event, at, path),
  tool_result: (model, event, at, path) => recordResult(model, event, at, path),
  human_input_required: (model, event, at, path) => recordQuestion(model, event, at, path),
  resumed: (model, event, _at, path) => recordResumed(model, event, path),
  step_warning: RULES.step_warning!,
  llm_reasoning: RULES.llm_reasoning!,
}
export const SPOKEN_TYPES = Object.keys(SPOKEN)

/** Read what was said in one step of a long run, from its events. */
export function applySpoken(model: RunModel, path: string, events: readonly RunEvent[]): void {
  const conversation = openConversation(model, path, path)
  conversation.items = []
  conversation.loaded = true
  for (const event of events) SPOKEN[event.type]?.(model, event, Date.parse(event.at ?? ''), text(event.path))
}

/** Apply events. Those that the model has are skipped, so pages and the stream may overlap. Returns whether it changed. */
export function applyEvents(model: RunModel, events: readonly RunEvent[]): boolean {
  let changed = false
  for (const event of events) {
    if (event.seq === undefined) {
      changed = applyLive(model, event) || changed
      continue
    }
    if (event.seq !== model.last + 1) continue
    model.last = event.seq
    RULES[event.type]?.(model, event, Date.parse(event.at ?? ''), text(event.path))
    changed = true
  }
  return changed
}
