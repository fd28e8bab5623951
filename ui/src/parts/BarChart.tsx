/* Bars over time, as elements: each has its numbers on hover, and nothing has to be drawn again in another theme. */
import { cx } from './classes'

export interface Bar {
  key: string
  value: number
}

export function BarChart({ label, bars, format }: { label: string; bars: Bar[]; format: (value: number) => string }) {
  const most = Math.max(...bars.map((bar) => bar.value), 0)
  const total = bars.reduce((sum, bar) => sum + bar.value, 0)
  return (
    <figure aria-label={`${label}: ${format(total)} in total, at most ${format(most)}`} className="flex flex-col gap-1">
      <div className="flex items-stretch gap-2">
        <div aria-hidden className="tabular flex w-14 shrink-0 flex-col justify-between text-right text-2xs text-faint">
          <span>{format(most)}</span>
          <span>0</span>
        </div>
        <div className="flex h-40 min-w-0 flex-1 items-end gap-px border-b border-l border-line pl-px">
          {bars.map((bar) => (
            <div key={bar.key} title={`${bar.key}: ${format(bar.value)}`} className="flex h-full min-w-0 flex-1 items-end hover:bg-hover">
              <div className={cx('w-full rounded-t-xs', bar.value === 0 ? 'bg-line' : 'bg-accent')} style={{ height: bar.value === 0 ? 1 : `max(2px, ${(bar.value / most) * 100}%)` }} />
            </div>
          ))}
        </div>
      </div>
      <figcaption className="flex justify-between pl-16 text-2xs text-faint">
        <span>{bars[0]?.key}</span>
        <span>{label}</span>
        <span>{bars.at(-1)?.key}</span>
      </figcaption>
    </figure>
  )
}
