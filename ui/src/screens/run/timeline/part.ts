/* The visible part of the time line as it is in the address: milliseconds since the start, so that it stays the same
while the run continues, whether idle time is folded or not. */
import type { Scale } from './scale'

export interface Part {
  from: number
  to: number
}

/** `1200..5400`; null if the text is not such a part. */
export function boundsOf(text: string | null): Part | null {
  const match = /^(\d{1,15})\.\.(\d{1,15})$/.exec(text ?? '')
  if (match === null) return null
  const [from, to] = [Number(match[1]), Number(match[2])]
  return to > from ? { from, to } : null
}

/** The places of a part on the line, 0 to 1; null for the whole line, or for a part that lies outside of it. */
export function partOf(bounds: Part | null, scale: Scale, start: number): Part | null {
  if (bounds === null) return null
  const [from, to] = [scale.x(start + bounds.from), scale.x(start + bounds.to)]
  return to > from ? { from, to } : null
}

/** The text of a part; null for the whole line, which the address does not name. */
export function zoomText(part: Part, scale: Scale, start: number): string | null {
  if (part.from <= 0 && part.to >= 1) return null
  const from = Math.max(0, Math.floor(scale.time(part.from) - start))
  return `${from}..${Math.max(from + 1, Math.ceil(scale.time(part.to) - start))}`
}
