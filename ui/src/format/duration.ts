/* Durations: the two largest units, exact enough to compare and short enough for a column. */

const MINUTE = 60
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

function two(major: number, majorUnit: string, minor: number, minorUnit: string): string {
  return minor === 0 ? `${major}${majorUnit}` : `${major}${majorUnit} ${minor}${minorUnit}`
}

export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–'
  if (seconds < 0) return `-${formatDuration(-seconds)}`
  if (seconds === 0) return '0s'
  if (seconds < 0.001) return '<1ms'
  if (seconds < 0.9995) return `${Math.round(seconds * 1_000)}ms`
  if (seconds < 9.995) return `${seconds.toFixed(2)}s`
  if (seconds < 59.95) return `${seconds.toFixed(1)}s`
  const whole = Math.round(seconds)
  if (whole < HOUR) return two(Math.floor(whole / MINUTE), 'm', whole % MINUTE, 's')
  if (whole < DAY) return two(Math.floor(whole / HOUR), 'h', Math.floor((whole % HOUR) / MINUTE), 'm')
  return two(Math.floor(whole / DAY), 'd', Math.floor((whole % DAY) / HOUR), 'h')
}

/** For a clock that ticks once a second: no fractions that would flicker. */
export function formatTicking(seconds: number): string {
  return seconds < 60 ? `${Math.max(0, Math.floor(seconds))}s` : formatDuration(Math.floor(seconds))
}

const UNITS: Record<string, number> = { s: 1, m: MINUTE, h: HOUR, d: DAY, w: 7 * DAY }

/** Parse `15m`, `24h`, `7d`; null for anything else. */
export function parseDuration(text: string): number | null {
  const match = /^(\d+(?:\.\d+)?)\s*([smhdw])$/.exec(text.trim())
  return match === null ? null : Number(match[1]) * UNITS[match[2]!]!
}
