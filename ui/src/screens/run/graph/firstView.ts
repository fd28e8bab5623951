/* What a graph shows first: all of it, or, if its steps would be too small to read, its beginning. */
import type { Arrangement } from './arrange'

export interface Box {
  width: number
  height: number
}

const READABLE = 0.6
const LARGEST = 1.1
const MARGIN = 0.06

export function firstView(arrangement: Arrangement, box: Box): { x: number; y: number; zoom: number } {
  const room = 1 - 2 * MARGIN
  const fitting = Math.min((box.width * room) / Math.max(1, arrangement.width), (box.height * room) / Math.max(1, arrangement.height))
  if (fitting >= READABLE) {
    const zoom = Math.min(LARGEST, fitting)
    return { x: (box.width - arrangement.width * zoom) / 2, y: (box.height - arrangement.height * zoom) / 2, zoom }
  }
  const top = arrangement.places.filter((place) => place.parent === null).reduce((first, place) => (place.y < first.y ? place : first), arrangement.places[0]!)
  const fits = arrangement.width * READABLE <= box.width
  const middle = fits ? arrangement.width / 2 : top.x + top.width / 2
  return { x: box.width / 2 - middle * READABLE, y: box.height * MARGIN - top.y * READABLE, zoom: READABLE }
}
