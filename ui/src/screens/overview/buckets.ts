/* One point for each part of a window: the server returns only those in which something happened. */
import type { components } from '@/api/schema'

export type Point = components['schemas']['SeriesPoint']

const NOTHING = {
  accepted: 0, started: 0, completed: 0, failed: 0, cancelled: 0, retried: 0, cost_usd: 0, tokens: 0,
  duration_p50_seconds: null, duration_p95_seconds: null, wait_p50_seconds: null, wait_p95_seconds: null,
}

export function everyBucket(points: Point[], from: number, to: number, stepSeconds: number): Point[] {
  const step = stepSeconds * 1_000
  const known = new Map(points.map((point) => [Math.floor(Date.parse(point.at) / step), point]))
  const found: Point[] = []
  for (let bucket = Math.floor(from / step); bucket < Math.ceil(to / step); bucket++) {
    found.push(known.get(bucket) ?? { at: new Date(bucket * step).toISOString(), ...NOTHING })
  }
  return found
}
