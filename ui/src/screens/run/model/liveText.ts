/* Pieces of answers that are being written. They are void after a takeover, and the stored answer replaces them. */
import type { LiveAnswer, RunEvent, RunModel } from './types'

const text = (value: unknown): string => (typeof value === 'string' ? value : '')

const BEYOND_16_BITS = /[\ud800-\udbff]/

/** Add a piece at its offset, which counts characters and not UTF-16 units. A piece at 0 restarts the text. */
export function addPiece(known: string, offset: number, piece: string): string | null {
  if (offset === 0) return piece
  if (!BEYOND_16_BITS.test(known)) return offset > known.length ? null : known.slice(0, offset) + piece
  const characters = Array.from(known)
  return offset > characters.length ? null : characters.slice(0, offset).join('') + piece
}

function answerOf(model: RunModel, event: RunEvent): LiveAnswer {
  const key = `${text(event.path)} ${text(event.answer)}`
  let live = model.live.get(key)
  if (live === undefined) {
    live = { path: text(event.path), answer: text(event.answer), text: '', thinking: '', args: {} }
    model.live.set(key, live)
  }
  return live
}

function addArguments(live: LiveAnswer, event: RunEvent, offset: number): void {
  const call = (live.args[text(event.call_id)] ??= { name: text(event.tool_name), text: '' })
  call.text = addPiece(call.text, offset, text(event.text)) ?? call.text
}

/** Apply an event without a number. Returns whether something is shown differently. */
export function applyLive(model: RunModel, event: RunEvent): boolean {
  if (event.type === 'truncated') {
    const first = Number(event.first_seq)
    if (Number.isFinite(first) && first > model.last + 1) {
      model.first = first
      model.last = first - 1
    }
    return true
  }
  if (event.attempt < model.attempt || model.ended) return false
  if (event.type === 'progress') {
    model.progress = { share: Number(event.progress ?? event.share ?? 0), note: typeof event.note === 'string' ? event.note : null }
    return true
  }
  const offset = Number(event.offset)
  if (event.type === 'text' || event.type === 'thinking') {
    const live = answerOf(model, event)
    const added = addPiece(live[event.type], offset, text(event.text))
    if (added === null) return false
    if (event.type === 'text' && offset === 0) live.args = {}
    live[event.type] = added
    return true
  }
  if (event.type === 'arguments') {
    addArguments(answerOf(model, event), event, offset)
    return true
  }
  return false
}
