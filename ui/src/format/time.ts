/* Times: relative for reading, exact local time and UTC on hover and in copied text. */
import { formatDuration } from './duration'

export type Zone = 'local' | 'utc'

let offsetMs = 0

/** Set how far the server's clock is ahead of this device, so that ticking durations are the server's. */
export function setServerOffset(ms: number): void {
  offsetMs = ms
}

/** The time of the server, by the clock of this device. */
export function serverNow(): number {
  return Date.now() + offsetMs
}

const pad = (value: number, width = 2): string => String(value).padStart(width, '0')

interface Parts {
  date: string
  time: string
  zone: string
}

function parts(ms: number, zone: Zone): Parts {
  const at = new Date(ms)
  if (zone === 'utc') return { date: at.toISOString().slice(0, 10), time: at.toISOString().slice(11, 23), zone: 'UTC' }
  const minutes = -at.getTimezoneOffset()
  const sign = minutes < 0 ? '-' : '+'
  const away = Math.abs(minutes)
  return {
    date: `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`,
    time: `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`,
    zone: `${sign}${pad(Math.floor(away / 60))}:${pad(away % 60)}`,
  }
}

/** `2026-11-17 09:04:31` in the chosen zone. */
export function formatExact(iso: string | null | undefined, zone: Zone = 'local', withMillis = false): string {
  const ms = iso === null || iso === undefined ? Number.NaN : Date.parse(iso)
  if (Number.isNaN(ms)) return '–'
  const { date, time, zone: name } = parts(ms, zone)
  return `${date} ${withMillis ? time : time.slice(0, 8)}${zone === 'utc' ? ` ${name}` : ''}`
}

/** `09:04:31` on the same day, with the date otherwise. */
export function formatClock(iso: string | null | undefined, zone: Zone = 'local', now = serverNow()): string {
  const ms = iso === null || iso === undefined ? Number.NaN : Date.parse(iso)
  if (Number.isNaN(ms)) return '–'
  const then = parts(ms, zone)
  return then.date === parts(now, zone).date ? then.time.slice(0, 8) : `${then.date.slice(5)} ${then.time.slice(0, 5)}`
}

/** What is copied and shown on hover: local time with its offset, and UTC. */
export function describeMoment(iso: string | null | undefined): string {
  const ms = iso === null || iso === undefined ? Number.NaN : Date.parse(iso)
  if (Number.isNaN(ms)) return ''
  const local = parts(ms, 'local')
  const utc = parts(ms, 'utc')
  return `${local.date} ${local.time} ${local.zone} (UTC ${utc.date} ${utc.time})`
}

/** `12s ago`, `in 3m 4s`. */
export function formatRelative(iso: string | null | undefined, now = serverNow()): string {
  const ms = iso === null || iso === undefined ? Number.NaN : Date.parse(iso)
  if (Number.isNaN(ms)) return '–'
  const seconds = (now - ms) / 1_000
  if (Math.abs(seconds) < 1) return 'now'
  const text = formatDuration(Math.floor(Math.abs(seconds))).split(' ')[0]!
  return seconds > 0 ? `${text.replace(/\.\d+s$/, 's')} ago` : `in ${text.replace(/\.\d+s$/, 's')}`
}

/** Seconds from one moment to another, or to now if it has not come. */
export function secondsBetween(from: string | null | undefined, to: string | null | undefined, now = serverNow()): number | null {
  if (from === null || from === undefined) return null
  const end = to === null || to === undefined ? now : Date.parse(to)
  return Math.max(0, (end - Date.parse(from)) / 1_000)
}
