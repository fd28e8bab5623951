/* One line about an event. Unknown types show their first fields, so that the page of today reads the events of tomorrow. */
import { oneLine } from '@/format/text'
import { formatDuration } from '@/format/duration'
import type { RunEvent } from '../model/types'

const COMMON = new Set(['type', 'seq', 'run_id', 'attempt', 'at', 'path', 'orch_step_id', 'step_name', 'step_type'])

const str = (value: unknown): string => (typeof value === 'string' ? value : value === undefined || value === null ? '' : JSON.stringify(value))

const SUMMARIES: Record<string, (event: RunEvent) => string> = {
  worker_picked_up: (event) => `${str(event.worker_id)}, try ${str(event.tries)}`,
  worker_lost: (event) => `${str(event.worker_id)} died; the run is ${str(event.status)}`,
  log: (event) => str(event.message),
  done: (event) => str(event.status),
  step_start: (event) => `${str(event.step_type)}`,
  step_complete: (event) => (typeof event.duration_seconds === 'number' ? formatDuration(event.duration_seconds) : ''),
  step_error: (event) => `${str(event.code)}: ${str(event.error)}`,
  step_retry: (event) => `try ${str(event.tries)} failed: ${str(event.error)}`,
  model_response: (event) => str(event.text) || (Array.isArray(event.tool_calls) ? event.tool_calls.map((call) => str((call as { name?: unknown }).name)).join(', ') : ''),
  tool_execution: (event) => `${str(event.tool_name)} ${str(event.args)}`,
  tool_result: (event) => `${str(event.tool_name)}: ${str(event.preview)}`,
  human_input_required: (event) => str(event.prompt),
  loop_iteration: (event) => `round ${str(event.iteration)} of ${str(event.total)}`,
  final: (event) => str(event.response),
}

export function summaryOf(event: RunEvent): string {
  const known = SUMMARIES[event.type]
  if (known !== undefined) return oneLine(known(event), 240)
  const rest = Object.entries(event).filter(([key]) => !COMMON.has(key))
  return oneLine(rest.map(([key, value]) => `${key}: ${str(value)}`).join('  '), 240)
}
