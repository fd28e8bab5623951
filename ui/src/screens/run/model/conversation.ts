/* What was said in a step: answers with thoughts and tool calls, questions to people, notes. */
import type { AnswerItem, Conversation, RunEvent, RunModel, ToolCallItem } from './types'
import { ownerOf } from './paths'

const text = (value: unknown): string => (typeof value === 'string' ? value : value === null || value === undefined ? '' : JSON.stringify(value))
const number = (value: unknown): number | null => (typeof value === 'number' ? value : null)

export function openConversation(model: RunModel, path: string, name: string): Conversation {
  const known = model.conversations.get(path)
  if (known !== undefined) return known
  const conversation: Conversation = { path, name: name || path, items: [] }
  model.conversations.set(path, conversation)
  return conversation
}

interface CallRecord {
  id?: unknown
  name?: unknown
  arguments?: unknown
}

export function recordAnswer(model: RunModel, event: RunEvent, at: number, path: string): void {
  const conversation = openConversation(model, path, text(event.step_name))
  const calls = Array.isArray(event.tool_calls) ? (event.tool_calls as CallRecord[]) : []
  const item: AnswerItem = {
    kind: 'answer',
    key: `answer ${text(event.answer)} ${event.seq}`,
    seq: event.seq ?? null,
    at,
    turn: number(event.turn),
    model: text(event.model) || null,
    text: text(event.text),
    thinking: text(event.thinking),
    calls: calls.map((call) => ({ id: text(call.id), name: text(call.name), args: call.arguments, preview: null, failed: false, start: null, end: null })),
    cost: number(event.cost_usd),
    tokensIn: number(event.tokens_in) ?? 0,
    tokensOut: number(event.tokens_out) ?? 0,
    live: false,
  }
  conversation.items.push(item)
  model.live.delete(`${path} ${text(event.answer)}`)
}

function findCall(model: RunModel, path: string, id: string): ToolCallItem | undefined {
  const items = model.conversations.get(path)?.items ?? []
  for (let at = items.length - 1; at >= 0; at--) {
    const item = items[at]!
    const found = item.kind === 'answer' ? item.calls.find((call) => call.id === id) : undefined
    if (found !== undefined) return found
  }
  return undefined
}

export function recordCall(model: RunModel, event: RunEvent, at: number, path: string): void {
  const id = text(event.call_id)
  let call = findCall(model, path, id)
  if (call === undefined) {
    // A tool step calls its tool without an answer of a model.
    call = { id, name: text(event.tool_name), args: event.args, preview: null, failed: false, start: null, end: null }
    openConversation(model, path, text(event.step_name)).items.push({
      kind: 'answer', key: `call ${id} ${event.seq}`, seq: event.seq ?? null, at, turn: null, model: null, text: '', thinking: '', calls: [call], cost: null, tokensIn: 0, tokensOut: 0, live: false,
    })
  }
  call.start = at
  call.end = null
  call.args = event.args ?? call.args
}

export function recordResult(model: RunModel, event: RunEvent, at: number, path: string): void {
  const call = findCall(model, path, text(event.call_id))
  if (call === undefined) return
  Object.assign(call, { preview: text(event.preview), failed: event.failed === true, end: at })
}

export function recordQuestion(model: RunModel, event: RunEvent, at: number, path: string): void {
  const owner = ownerOf(path)
  openConversation(model, owner, text(event.step_name) || owner).items.push({
    kind: 'question',
    key: `question ${path} ${event.seq}`,
    seq: event.seq ?? 0,
    at,
    path,
    prompt: text(event.prompt),
    context: event.agent_context ?? null,
    answeredBy: null,
    open: true,
  })
}

export function recordResumed(model: RunModel, event: RunEvent, path: string): void {
  for (const item of model.conversations.get(ownerOf(path))?.items ?? []) {
    if (item.kind === 'question' && item.path === path && item.open) Object.assign(item, { open: false, answeredBy: text(event.by) || null })
  }
}

export function recordNote(model: RunModel, event: RunEvent, at: number, path: string, note: string, tone: 'wait' | 'bad' | 'idle'): void {
  if (path === '') return
  openConversation(model, path, text(event.step_name)).items.push({ kind: 'note', key: `note ${event.seq}`, seq: event.seq ?? 0, at, text: note, tone })
}
