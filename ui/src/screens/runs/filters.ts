/* The filters of the list of runs, and their names in the URL. */
import { parseDuration } from '@/format/duration'
import type { components } from '@/api/schema'

type Status = components['schemas']['Status']
export type BulkFilter = components['schemas']['BulkFilter']

export interface RunFilters {
  status: string[]
  target: string
  lane: string
  key: string
  tag: string[]
  /** `24h`, `7d`; `all` for any time. */
  window: string
  /** Exact bounds, which replace the window. */
  from: string
  before: string
  text: string
  parent: string
  schedule: string
  worker: string
  session: string
  error: string
  /** The version of the definition that the runs are pinned to. */
  version: string
  /** `yes` also lists runs that other runs started as tools. */
  children: string
  forks: string
  /** Durations such as `90s` or `2h`. */
  longer: string
  shorter: string
  /** Dollars. */
  mincost: string
  maxcost: string
}

export const DEFAULT_WINDOW = '24h'
export const WINDOWS: [string, string][] = [
  ['15m', 'Last 15 minutes'],
  ['1h', 'Last hour'],
  ['24h', 'Last 24 hours'],
  ['7d', 'Last 7 days'],
  ['30d', 'Last 30 days'],
  ['all', 'Any time'],
]

/** Filters with one value, as they are called on the page. */
type SingleName = 'target' | 'lane' | 'key' | 'parent' | 'forks' | 'schedule' | 'worker' | 'session' | 'error' | 'version' | 'longer' | 'shorter' | 'mincost' | 'maxcost' | 'text'

export const SINGLE: [name: SingleName, label: string, hint: string][] = [
  ['target', 'Target', 'A task, orchestration:ID or agent:ID'],
  ['lane', 'Lane', 'The name of a lane'],
  ['key', 'Ordering key', 'The whole key'],
  ['schedule', 'Schedule', 'The id of the schedule that started the runs'],
  ['parent', 'Parent run', 'The run that called them as tools'],
  ['forks', 'Forks of run', 'The run that they were forked from'],
  ['worker', 'Worker', 'The id of the worker that executed them last'],
  ['session', 'Chat session', 'The id of the conversation'],
  ['error', 'Error', 'The code or type of their error, such as timeout'],
  ['version', 'Version', 'The version of the orchestration or agent'],
  ['longer', 'Took at least', 'A duration, such as 90s or 2h'],
  ['shorter', 'Took at most', 'A duration, such as 90s or 2h'],
  ['mincost', 'Cost at least', 'In dollars, such as 0.50'],
  ['maxcost', 'Cost at most', 'In dollars'],
  ['text', 'Text', 'Part of the id, target, key or progress note'],
]

export function readFilters(params: URLSearchParams): RunFilters {
  const one = (name: string) => params.get(name) ?? ''
  const exact = one('from') !== '' || one('before') !== ''
  return {
    status: params.getAll('status'),
    target: one('target'),
    lane: one('lane'),
    key: one('key'),
    tag: params.getAll('tag'),
    window: exact ? '' : one('window') || DEFAULT_WINDOW,
    from: one('from'),
    before: one('before'),
    text: one('text'),
    parent: one('parent'),
    schedule: one('schedule'),
    worker: one('worker'),
    session: one('session'),
    error: one('error'),
    version: one('version'),
    children: one('children'),
    forks: one('forks'),
    longer: one('longer'),
    shorter: one('shorter'),
    mincost: one('mincost'),
    maxcost: one('maxcost'),
  }
}

export function writeFilters(filters: RunFilters): Record<string, string | string[] | null> {
  const { status, tag, window, ...rest } = filters
  const written: Record<string, string | string[] | null> = { status, tag, window: window === DEFAULT_WINDOW ? null : window }
  for (const [name, value] of Object.entries(rest)) written[name] = value === '' ? null : value
  return written
}

/** The bounds of the window at a time. Whole seconds, so that one list is one entry of the cache for a while. */
function bounds(filters: RunFilters, now: number): { accepted_from?: string; accepted_before?: string } {
  const found: { accepted_from?: string; accepted_before?: string } = {}
  if (filters.from !== '') found.accepted_from = filters.from
  if (filters.before !== '') found.accepted_before = filters.before
  const length = filters.window === 'all' ? null : parseDuration(filters.window)
  if (length !== null) found.accepted_from = new Date(Math.floor(now / 60_000) * 60_000 - length * 1_000).toISOString()
  return found
}

/** What cannot be read goes to the server as it is, which says what is wrong with it. */
const seconds = (text: string): number | undefined => (text === '' ? undefined : (parseDuration(text) ?? (text as unknown as number)))
const dollars = (text: string): number | undefined => (text === '' ? undefined : Number.isNaN(Number(text)) ? (text as unknown as number) : Number(text))

/** Runs that others started as tools are listed on request, and with the run that started them. */
export function rootsOnly(filters: RunFilters): boolean {
  return filters.children === '' && filters.parent === ''
}

export function toQuery(filters: RunFilters, now: number) {
  return {
    status: filters.status.length > 0 ? (filters.status as Status[]) : undefined,
    target: filters.target || undefined,
    lane: filters.lane || undefined,
    key: filters.key || undefined,
    tag: filters.tag.length > 0 ? filters.tag : undefined,
    text: filters.text || undefined,
    parent: filters.parent || undefined,
    schedule_id: filters.schedule || undefined,
    worker: filters.worker || undefined,
    session: filters.session || undefined,
    error_code: filters.error || undefined,
    definition: filters.version || undefined,
    forked_from: filters.forks || undefined,
    roots: rootsOnly(filters) || undefined,
    min_duration_seconds: seconds(filters.longer),
    max_duration_seconds: seconds(filters.shorter),
    min_cost_usd: dollars(filters.mincost),
    max_cost_usd: dollars(filters.maxcost),
    ...bounds(filters, now),
  }
}

/** The same selection for a bulk job, in the tenant that the list shows. */
export function toBulkFilter(filters: RunFilters, now: number, tenant?: string): BulkFilter {
  const { key, tag, ...shared } = toQuery(filters, now)
  return { ...shared, ordering_key: key, tags: tag, tenant }
}

export interface SetFilter {
  /** The parameter in the URL. */
  name: string
  label: string
  value: string
}

/** Filters that are set, one entry for each value; the default window is not one. */
export function setFilters(filters: RunFilters): SetFilter[] {
  const found: SetFilter[] = filters.status.map((value) => ({ name: 'status', label: 'Status', value }))
  for (const [name, label] of SINGLE) if (filters[name] !== '') found.push({ name, label, value: filters[name] })
  found.push(...filters.tag.map((value) => ({ name: 'tag', label: 'Tag', value })))
  if (filters.from !== '') found.push({ name: 'from', label: 'From', value: filters.from })
  if (filters.before !== '') found.push({ name: 'before', label: 'Before', value: filters.before })
  return found
}

export function without(filters: RunFilters, { name, value }: SetFilter): RunFilters {
  if (name === 'status' || name === 'tag') return { ...filters, [name]: filters[name].filter((other) => other !== value) }
  const next = { ...filters, [name]: '' }
  return next.from === '' && next.before === '' && next.window === '' ? { ...next, window: DEFAULT_WINDOW } : next
}
