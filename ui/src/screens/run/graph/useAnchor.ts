/* When an inner orchestration is opened or closed, the step that runs it stays where it is on the screen. */
import { useReactFlow } from '@xyflow/react'
import { useLayoutEffect, useRef } from 'react'
import type { Arrangement, Place } from './arrange'

function cornerOf(places: Map<string, Place>, id: string): { x: number; y: number } {
  let [x, y] = [0, 0]
  for (let place = places.get(id); place !== undefined; place = place.parent === null ? undefined : places.get(place.parent)) {
    x += place.x
    y += place.y
  }
  return { x, y }
}

/** The innermost box whose size has changed. */
function changedBox(before: Map<string, Place>, after: Arrangement): Place | undefined {
  return after.places.findLast((place) => {
    const known = before.get(place.id)
    return known !== undefined && (known.width !== place.width || known.height !== place.height)
  })
}

export function useAnchor(arrangement: Arrangement | null): void {
  const { getViewport, setViewport } = useReactFlow()
  const shown = useRef<Map<string, Place> | null>(null)
  useLayoutEffect(() => {
    if (arrangement === null) return
    const before = shown.current
    const after = new Map(arrangement.places.map((place) => [place.id, place]))
    shown.current = after
    const box = before === null ? undefined : changedBox(before, arrangement)
    if (before === null || box === undefined) return
    const [from, to] = [cornerOf(before, box.id), cornerOf(after, box.id)]
    const { x, y, zoom } = getViewport()
    void setViewport({ x: x + (from.x - to.x) * zoom, y: y + (from.y - to.y) * zoom, zoom })
  }, [arrangement, getViewport, setViewport])
}
