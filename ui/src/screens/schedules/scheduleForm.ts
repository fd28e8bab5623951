/* The form of a schedule: its fields, what they start with, and the request they make. */
import type { components } from '@/api/schema'
import { formatJson, parseJson } from '@/api/json'
import { asCli } from '@/format/command'

export type Schedule = components['schemas']['Schedule']
export type PutSchedule = components['schemas']['PutSchedule']
export type PreviewSchedule = components['schemas']['PreviewSchedule']
export type Times = 'cron' | 'every' | 'at'

export interface ScheduleDraft {
  id: string
  kind: 'task' | 'orchestration' | 'agent'
  name: string
  message: string
  input: string
  times: Times
  cron: string
  every: string
  at: string
  zone: string
  overlap: NonNullable<PutSchedule['overlap']>
  catchUp: NonNullable<PutSchedule['catch_up']>
}

export const OVERLAPS: [ScheduleDraft['overlap'], string][] = [
  ['skip', 'Skip the slot while a run is open'],
  ['queue_one', 'Queue one run behind the open one'],
  ['queue_all', 'Queue a run for every slot'],
  ['cancel_previous', 'Cancel the open run and start'],
  ['allow', 'Start in any case'],
]

export const CATCH_UPS: [ScheduleDraft['catchUp'], string][] = [
  ['none', 'Start none of the missed slots'],
  ['latest', 'Start the latest missed slot'],
  ['all', 'Start every missed slot'],
]

export const PRESETS: [string, string][] = [
  ['*/15 * * * *', 'Every 15 minutes'],
  ['0 * * * *', 'Every hour'],
  ['0 7 * * *', 'Every day at 7:00'],
  ['0 7 * * 1-5', 'On weekdays at 7:00'],
  ['0 7 * * 1', 'On Mondays at 7:00'],
  ['0 7 1 * *', 'On the first of the month at 7:00'],
]

export function emptyDraft(): ScheduleDraft {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC'
  return { id: '', kind: 'task', name: '', message: '', input: '{}', times: 'cron', cron: '0 7 * * *', every: '3600', at: '', zone, overlap: 'skip', catchUp: 'none' }
}

function specOf(draft: ScheduleDraft): components['schemas']['TimeSpec'][] | null {
  if (draft.times === 'cron') return draft.cron.trim() === '' ? null : [{ cron: draft.cron.trim() }]
  if (draft.times === 'every') {
    const seconds = Number(draft.every)
    return Number.isFinite(seconds) && seconds > 0 ? [{ every_seconds: seconds }] : null
  }
  const at = Date.parse(draft.at)
  return Number.isNaN(at) ? null : [{ at: new Date(at).toISOString() }]
}

export function previewOf(draft: ScheduleDraft): PreviewSchedule | null {
  const spec = specOf(draft)
  return spec === null ? null : { spec, zone: draft.zone, count: 5 }
}

export interface ReadSchedule {
  body: PutSchedule | null
  problem: string | null
}

export function readSchedule(draft: ScheduleDraft): ReadSchedule {
  const spec = specOf(draft)
  if (draft.id.trim() === '') return { body: null, problem: 'An id is required.' }
  if (draft.name === '') return { body: null, problem: 'Choose what to start.' }
  if (spec === null) return { body: null, problem: 'The times are not complete.' }
  let input: unknown
  try {
    input = draft.input.trim() === '' ? {} : parseJson(draft.input)
  } catch {
    return { body: null, problem: 'The input is not valid JSON.' }
  }
  if (typeof input !== 'object' || input === null || Array.isArray(input)) return { body: null, problem: 'The input must be a JSON object.' }
  const body: PutSchedule = { id: draft.id.trim(), target: { kind: draft.kind, name: draft.name }, spec, zone: draft.zone, overlap: draft.overlap, catch_up: draft.catchUp }
  if (Object.keys(input).length > 0) body.input = input as Record<string, unknown>
  if (draft.kind !== 'task' && draft.message !== '') body.message = draft.message
  return { body, problem: null }
}

export function cliOf(body: PutSchedule): string {
  const words = ['schedules', 'create', body.id, `--${body.target.kind}`, body.target.name]
  for (const spec of body.spec) {
    if (spec.cron != null) words.push('--cron', spec.cron)
    if (spec.every_seconds != null) words.push('--every', String(spec.every_seconds))
    if (spec.at != null) words.push('--at', spec.at)
  }
  if (body.zone !== undefined) words.push('--zone', body.zone)
  if (body.overlap !== undefined) words.push('--overlap', body.overlap)
  // The command has no option of its own for it.
  if (body.catch_up !== undefined) words.push('--settings', formatJson({ catch_up: body.catch_up }, 0))
  if (body.message) words.push('--message', body.message)
  if (body.input !== undefined) words.push('--input', formatJson(body.input, 0))
  return asCli(...words)
}

/** What a schedule starts, as runs name it. */
export function targetOf(schedule: Schedule): string {
  const { kind, name } = schedule.target as { kind?: string; name?: string }
  if (kind === 'task') return name ?? ''
  return `${kind === 'chat' ? 'agent' : kind}:${name ?? ''}`
}
