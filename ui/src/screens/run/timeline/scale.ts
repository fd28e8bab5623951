/* Time on a line where nothing happens for long is folded: a gap without work takes a small, fixed part of the width. */

export interface Interval {
  start: number
  end: number
}

export interface Segment {
  /** Milliseconds. */
  from: number
  to: number
  /** Part of the line, 0 to 1. */
  x0: number
  x1: number
  idle: boolean
}

export interface Scale {
  segments: Segment[]
  x: (time: number) => number
  time: (x: number) => number
}

const GAP_SHARE = 0.035
const LEAST_GAP_MS = 1_000

/** Sorted intervals that do not overlap. */
export function union(intervals: Interval[]): Interval[] {
  const sorted = intervals.filter(({ start, end }) => end >= start).sort((a, b) => a.start - b.start)
  const merged: Interval[] = []
  for (const interval of sorted) {
    const last = merged.at(-1)
    if (last !== undefined && interval.start <= last.end) last.end = Math.max(last.end, interval.end)
    else merged.push({ ...interval })
  }
  return merged
}

function cut(whole: Interval, busy: Interval[], collapse: boolean): { from: number; to: number; idle: boolean }[] {
  const total = busy.reduce((sum, { start, end }) => sum + end - start, 0)
  const least = Math.max(LEAST_GAP_MS, total * GAP_SHARE * 2)
  const parts: { from: number; to: number; idle: boolean }[] = []
  let at = whole.start
  for (const { start, end } of busy) {
    if (collapse && start - at > least) {
      if (at > whole.start && parts.at(-1) === undefined) parts.push({ from: whole.start, to: at, idle: false })
      parts.push({ from: at, to: start, idle: true })
      at = start
    }
    const last = parts.at(-1)
    if (last !== undefined && !last.idle) last.to = end
    else parts.push({ from: at, to: end, idle: false })
    at = end
  }
  if (whole.end > at) {
    const idle = collapse && whole.end - at > least
    const last = parts.at(-1)
    if (!idle && last !== undefined && !last.idle) last.to = whole.end
    else parts.push({ from: at, to: whole.end, idle })
  }
  return parts.length > 0 ? parts : [{ from: whole.start, to: whole.end, idle: false }]
}

export function makeScale(whole: Interval, busy: Interval[], collapse: boolean): Scale {
  const clipped = union(busy.map(({ start, end }) => ({ start: Math.max(whole.start, start), end: Math.min(whole.end, end) })))
  const parts = cut(whole, clipped, collapse)
  const work = parts.filter((part) => !part.idle).reduce((sum, { from, to }) => sum + to - from, 0)
  const gaps = parts.filter((part) => part.idle).length
  const gapWeight = Math.max(1, work) * GAP_SHARE
  const total = Math.max(1, work) + gaps * gapWeight
  let x = 0
  const segments = parts.map((part) => {
    const weight = part.idle ? gapWeight : work === 0 ? 1 / Math.max(1, parts.length - gaps) : part.to - part.from
    const x0 = x
    x += weight / total
    return { ...part, x0, x1: x }
  })
  const last = segments.at(-1)
  if (last !== undefined) last.x1 = 1
  return { segments, x: (time) => toX(segments, time), time: (at) => toTime(segments, at) }
}

function find(segments: Segment[], test: (segment: Segment) => boolean): Segment {
  let low = 0
  let high = segments.length - 1
  while (low < high) {
    const middle = (low + high) >> 1
    if (test(segments[middle]!)) high = middle
    else low = middle + 1
  }
  return segments[low]!
}

function toX(segments: Segment[], time: number): number {
  const { from, to, x0, x1 } = find(segments, (segment) => time <= segment.to)
  if (to === from) return time <= from ? x0 : x1
  return x0 + (x1 - x0) * Math.min(1, Math.max(0, (time - from) / (to - from)))
}

function toTime(segments: Segment[], x: number): number {
  const { from, to, x0, x1 } = find(segments, (segment) => x <= segment.x1)
  if (x1 === x0) return from
  return from + (to - from) * Math.min(1, Math.max(0, (x - x0) / (x1 - x0)))
}
