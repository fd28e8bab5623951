/* Where a finding of the server belongs in the text. */

export interface Range {
  from: number
  to: number
}

/** The object that contains a position, by its braces outside of strings. */
export function objectAround(text: string, at: number): Range | null {
  const open: number[] = []
  let inString = false
  let start: number | null = null
  for (let index = 0; index < text.length; index++) {
    const character = text[index]
    if (inString) {
      if (character === '\\') index += 1
      else if (character === '"') inString = false
      continue
    }
    if (character === '"') inString = true
    else if (character === '{') open.push(index)
    else if (character === '}') {
      const from = open.pop()
      if (from !== undefined && from <= at && index >= at) {
        start = from
        return { from: start, to: index + 1 }
      }
    }
  }
  return null
}

const escape = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')

/** The place of a step, by its id. */
export function findStep(text: string, step: string): Range | null {
  const match = new RegExp(`"id"\\s*:\\s*${escape(JSON.stringify(step))}`).exec(text)
  return match === null ? null : { from: match.index, to: match.index + match[0].length }
}

/** The id of the step that contains a position. */
export function stepAt(text: string, at: number): string | null {
  const around = objectAround(text, at)
  if (around === null) return null
  const match = /"id"\s*:\s*"((?:[^"\\]|\\.)*)"/.exec(text.slice(around.from, around.to))
  return match?.[1] ?? null
}

/** `orchestration "x", step "a", field next_step_id` is the value of that key in that step. */
export function locate(text: string, place: string): Range {
  const step = /step "((?:[^"\\]|\\.)*)"/.exec(place)?.[1]
  const field = /field ([\w-]+)/.exec(place)?.[1]
  const named = step === undefined ? null : findStep(text, step)
  const bounds = named === null ? { from: 0, to: text.length } : (objectAround(text, named.from) ?? { from: 0, to: text.length })
  if (field !== undefined) {
    const match = new RegExp(`"${escape(field)}"\\s*:`).exec(text.slice(bounds.from, bounds.to))
    if (match !== null) return { from: bounds.from + match.index, to: bounds.from + match.index + match[0].length - 1 }
  }
  return named ?? { from: 0, to: Math.min(1, text.length) }
}
