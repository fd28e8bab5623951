/* The axis: times since the start. Dragging over it zooms to that part. */
import { type PointerEvent, useCallback, useState } from 'react'
import { formatDuration } from '@/format/duration'
import type { Scale } from './scale'
import type { View } from './useView'

interface TimeAxisProps {
  scale: Scale
  view: View
  template: string
  narrow: boolean
  start: number
}

const TICKS = [0, 0.25, 0.5, 0.75, 1]
const FEW_TICKS = [0, 1]
/** A label and the space around it, in pixels. */
const LABEL = 64

function placeOf(event: PointerEvent<HTMLDivElement>): number {
  const box = event.currentTarget.getBoundingClientRect()
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width))
}

export function TimeAxis({ scale, view, template, narrow, start }: TimeAxisProps) {
  const [width, setWidth] = useState(1_000)
  const measure = useCallback((element: HTMLDivElement | null) => {
    if (element === null) return
    const observer = new ResizeObserver(() => setWidth(element.clientWidth))
    observer.observe(element)
    return () => observer.disconnect()
  }, [])
  const [brush, setBrush] = useState<{ from: number; to: number } | null>(null)
  const down = (event: PointerEvent<HTMLDivElement>) => {
    event.currentTarget.setPointerCapture(event.pointerId)
    setBrush({ from: placeOf(event), to: placeOf(event) })
  }
  const up = () => {
    if (brush !== null && Math.abs(brush.to - brush.from) > 0.01) view.show(view.point(brush.from), view.point(brush.to))
    setBrush(null)
  }
  return (
    <div style={{ gridTemplateColumns: template }} className="grid h-6 items-center border-b border-line text-2xs text-faint">
      <span className="px-3">Step</span>
      <div
        ref={measure}
        className="relative h-full cursor-crosshair touch-none"
        title="Drag to zoom"
        onPointerDown={down}
        onPointerMove={(event) => brush !== null && setBrush({ ...brush, to: placeOf(event) })}
        onPointerUp={up}
      >
        {(width < TICKS.length * LABEL ? FEW_TICKS : TICKS).map((place) => (
          <span
            key={place}
            className="tabular absolute top-1 px-0.5 whitespace-nowrap"
            style={{ left: `${place * 100}%`, transform: place === 0 ? undefined : place === 1 ? 'translateX(-100%)' : 'translateX(-50%)' }}
          >
            {formatDuration(Math.max(0, (scale.time(view.point(place)) - start) / 1_000))}
          </span>
        ))}
        {brush !== null && (
          <span className="absolute inset-y-0 bg-accent opacity-25" style={{ left: `${Math.min(brush.from, brush.to) * 100}%`, width: `${Math.abs(brush.to - brush.from) * 100}%` }} />
        )}
      </div>
      <span className="px-2 text-right">Duration</span>
      {!narrow && <span className="px-2 text-right">Cost</span>}
      {!narrow && <span className="px-2 text-right">Tokens</span>}
    </div>
  )
}
