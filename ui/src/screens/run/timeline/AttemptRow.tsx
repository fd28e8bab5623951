/* The attempts on the time line: one bar for each claim by a worker. */
import type { Run } from '@/api/types'
import { formatDuration } from '@/format/duration'
import { shortId } from '@/format/text'
import { cx, TONE_SOFT } from '@/parts/classes'
import { statusText } from '@/text/status'
import type { RunModel } from '../model/types'
import type { Scale } from './scale'
import type { View } from './useView'

export function AttemptRow({ model, run, scale, view, template, now }: { model: RunModel; run: Run; scale: Scale; view: View; template: string; now: number }) {
  return (
    <div style={{ gridTemplateColumns: template }} className="grid h-7 items-center border-b border-line text-xs">
      <span className="px-3 text-soft">
        {run.attempt === 1 ? '1 attempt' : `${run.attempt} attempts`}
        {run.losses > 0 && <span className="text-bad">, {run.losses === 1 ? '1 worker lost' : `${run.losses} workers lost`}</span>}
      </span>
      <div data-bars className="relative h-full overflow-hidden">
        {model.attempts.map((band) => {
          const left = view.place(scale.x(band.start))
          const right = view.place(scale.x(band.end ?? now))
          const { word, tone } = statusText(band.outcome)
          return (
            <span
              key={band.attempt}
              title={`Attempt ${band.attempt} on ${band.worker}: ${word}, ${formatDuration(((band.end ?? now) - band.start) / 1_000)}`}
              className={cx('absolute top-1 h-5 min-w-1 @container overflow-hidden rounded-sm text-2xs leading-5 whitespace-nowrap', TONE_SOFT[tone])}
              style={{ left: `${left * 100}%`, width: `max(4px, ${(right - left) * 100}%)` }}
            >
              <span className="hidden px-1 @min-[56px]:inline">{band.attempt}: {word} {shortId(band.worker)}</span>
            </span>
          )
        })}
      </div>
    </div>
  )
}
