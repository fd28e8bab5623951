/* The visible part of the time line: zoom with Ctrl and the wheel or by dragging over the axis. It is in the address. */
import { type RefObject, useCallback, useEffect, useMemo, useState } from 'react'
import { useAddress } from '@/app/address'
import { boundsOf, partOf, zoomText } from './part'
import type { Scale } from './scale'

export interface View {
  from: number
  to: number
  zoomed: boolean
  /** The place of a point of the line in the visible part, 0 to 1. */
  place: (x: number) => number
  /** The point of the line at a place of the visible part. */
  point: (place: number) => number
  show: (from: number, to: number) => void
  fit: () => void
  zoom: (factor: number, at?: number) => void
}

const LEAST = 1e-6
/** The address is written when the wheel rests: browsers refuse many changes of it in a second. */
const REST_MS = 250
const WHOLE = { from: 0, to: 1 }

/** `start` is the time of the first point of the line. */
export function useView(scroller: RefObject<HTMLDivElement | null>, scale: Scale, start: number): View {
  const address = useAddress()
  const text = address.get('zoom')
  // What the address does not have yet.
  const [moved, setMoved] = useState<{ from: number; to: number } | null>(null)
  const { from, to } = useMemo(() => moved ?? partOf(boundsOf(text), scale, start) ?? WHOLE, [moved, text, scale, start])
  const { set } = address
  useEffect(() => {
    if (moved === null) return
    const timer = setTimeout(() => {
      set({ zoom: zoomText(moved, scale, start) })
      setMoved(null)
    }, REST_MS)
    return () => clearTimeout(timer)
    // The scale of a running run grows; the part that was chosen is that of the moment of the choice.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [moved, set])
  const show = useCallback((a: number, b: number) => {
    const low = Math.max(0, Math.min(a, b))
    const high = Math.min(1, Math.max(a, b))
    if (high - low > LEAST) setMoved({ from: low, to: high })
  }, [])
  const view = useMemo(() => {
    const zoom = (factor: number, at = 0.5) => {
      const middle = from + (to - from) * at
      const width = Math.min(1, (to - from) / factor)
      const start = Math.max(0, Math.min(1 - width, middle - width * at))
      show(start, start + width)
    }
    return {
      from,
      to,
      zoomed: from > 0 || to < 1,
      place: (x: number) => (x - from) / (to - from),
      point: (place: number) => from + place * (to - from),
      show,
      fit: () => setMoved(WHOLE),
      zoom,
    }
  }, [from, to, show])
  useEffect(() => {
    const element = scroller.current
    const onWheel = (event: WheelEvent) => {
      const bars = element?.querySelector('[data-bars]')?.getBoundingClientRect()
      if (bars === undefined) return
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault()
        view.zoom(event.deltaY < 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, (event.clientX - bars.left) / bars.width)))
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const width = view.to - view.from
        const start = Math.max(0, Math.min(1 - width, view.from + ((event.deltaX || event.deltaY) / bars.width) * width))
        view.show(start, start + width)
      }
    }
    // React listens passively, and then Ctrl and the wheel would enlarge the whole page, too.
    element?.addEventListener('wheel', onWheel, { passive: false })
    return () => element?.removeEventListener('wheel', onWheel)
  }, [scroller, view])
  return view
}
