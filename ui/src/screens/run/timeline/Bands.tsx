/* Folded idle time: a hatched stripe behind the rows. */
import { formatDuration } from '@/format/duration'
import type { Scale } from './scale'
import type { View } from './useView'

export function Bands({ scale, view, template, narrow }: { scale: Scale; view: View; template: string; narrow: boolean }) {
  const idle = scale.segments.filter((segment) => segment.idle)
  return (
    <div aria-hidden style={{ gridTemplateColumns: template }} className="pointer-events-none absolute inset-0 grid">
      <span />
      <div data-bars className="relative overflow-hidden">
        {idle.map((segment) => (
          <span
            key={segment.from}
            title={`${formatDuration((segment.to - segment.from) / 1_000)} without work`}
            className="absolute inset-y-0 border-x border-dashed border-line-strong bg-[repeating-linear-gradient(-45deg,transparent_0_4px,var(--sunken)_4px_8px)]"
            style={{ left: `${view.place(segment.x0) * 100}%`, width: `${(view.place(segment.x1) - view.place(segment.x0)) * 100}%` }}
          />
        ))}
      </div>
      <span />
      {!narrow && <span />}
      {!narrow && <span />}
    </div>
  )
}
