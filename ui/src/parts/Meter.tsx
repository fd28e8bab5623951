/* A share as a bar with its numbers, and a short label with a tone. */
import type { ReactNode } from 'react'
import type { Tone } from '@/text/status'
import { formatCount } from '@/format/number'
import { cx, TONE_FILL, TONE_SOFT } from './classes'

export function Meter({ value, max, label, tone = 'busy', text }: { value: number; max: number | null; label: string; tone?: Tone; text?: string }) {
  const share = max === null || max <= 0 ? 0 : Math.min(1, value / max)
  return (
    <span className="inline-flex max-w-full items-center gap-2 align-middle">
      {max !== null && (
        <span role="meter" aria-label={label} aria-valuenow={Math.min(value, max)} aria-valuemin={0} aria-valuemax={Math.max(max, 1)} className="h-1.5 w-16 shrink-0 overflow-hidden rounded-full bg-idle-soft">
          <span className={cx('block h-full', TONE_FILL[tone])} style={{ width: `${share * 100}%` }} />
        </span>
      )}
      <span className="tabular whitespace-nowrap">{text ?? (max === null ? formatCount(value) : `${formatCount(value)} / ${formatCount(max)}`)}</span>
    </span>
  )
}

export function Chip({ tone = 'idle', title, children }: { tone?: Tone; title?: string; children: ReactNode }) {
  return (
    <span title={title} className={cx('inline-flex h-5 max-w-full min-w-0 items-center gap-1 truncate rounded-sm px-1.5 text-xs font-medium whitespace-nowrap', TONE_SOFT[tone])}>
      {children}
    </span>
  )
}
