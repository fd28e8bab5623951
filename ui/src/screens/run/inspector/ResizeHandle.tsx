/* Drag the edge of the inspector, or use the arrow keys. */
import { type KeyboardEvent, type PointerEvent, useRef } from 'react'

const LEAST = 280
const MOST = 900

export function ResizeHandle({ width, onResize }: { width: number; onResize: (width: number) => void }) {
  const start = useRef<{ x: number; width: number } | null>(null)
  const clamp = (value: number) => Math.max(LEAST, Math.min(MOST, Math.round(value)))
  const move = (event: PointerEvent<HTMLDivElement>) => {
    if (start.current !== null) onResize(clamp(start.current.width + start.current.x - event.clientX))
  }
  const keys = (event: KeyboardEvent) => {
    const by = { ArrowLeft: 24, ArrowRight: -24 }[event.key]
    if (by === undefined) return
    event.preventDefault()
    onResize(clamp(width + by))
  }
  return (
    <div
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the inspector"
      aria-valuenow={width}
      aria-valuemin={LEAST}
      aria-valuemax={MOST}
      tabIndex={0}
      onKeyDown={keys}
      onPointerDown={(event) => {
        start.current = { x: event.clientX, width }
        event.currentTarget.setPointerCapture(event.pointerId)
      }}
      onPointerMove={move}
      onPointerUp={() => {
        start.current = null
      }}
      className="absolute inset-y-0 -left-1 z-10 w-2 cursor-col-resize hover:bg-line max-md:hidden"
    />
  )
}
