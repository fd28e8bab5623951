/* Moments and durations as every screen shows them. */
import { useNow } from '@/app/clock'
import { usePreference } from '@/app/preferences'
import { formatDuration, formatTicking } from '@/format/duration'
import { describeMoment, formatClock, formatExact, formatRelative, secondsBetween, type Zone } from '@/format/time'

export function useZone(): Zone {
  return usePreference<Zone>('zone', 'local')[0]
}

type Style = 'relative' | 'clock' | 'exact'

export function Time({ at, style = 'clock' }: { at: string | null | undefined; style?: Style }) {
  const zone = useZone()
  const now = useNow(style === 'relative' && at !== null && at !== undefined)
  if (at === null || at === undefined) return <span className="text-faint">–</span>
  const text = style === 'relative' ? formatRelative(at, now) : style === 'clock' ? formatClock(at, zone) : formatExact(at, zone)
  return (
    <time dateTime={at} title={describeMoment(at)} className="tabular whitespace-nowrap">
      {text}
    </time>
  )
}

/** A duration that ticks while `to` is missing. */
export function Elapsed({ from, to, running = true }: { from: string | null | undefined; to: string | null | undefined; running?: boolean }) {
  const ticking = running && from !== null && from !== undefined && (to === null || to === undefined)
  const now = useNow(ticking)
  if (from === null || from === undefined || (!ticking && (to === null || to === undefined))) return <span className="text-faint">–</span>
  const seconds = secondsBetween(from, to, now) ?? 0
  return (
    <span className="tabular whitespace-nowrap" title={`${seconds.toFixed(3)} s`}>
      {ticking ? formatTicking(seconds) : formatDuration(seconds)}
    </span>
  )
}

export function Duration({ seconds }: { seconds: number | null | undefined }) {
  if (seconds === null || seconds === undefined) return <span className="text-faint">–</span>
  return (
    <span className="tabular whitespace-nowrap" title={`${seconds} s`}>
      {formatDuration(seconds)}
    </span>
  )
}
