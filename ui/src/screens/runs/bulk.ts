/* Bulk changes of runs: the request for a selection, and what it will and will not change. */
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import type { ActionRequest } from '@/parts/action/action'
import { isEnded } from '@/text/status'
import type { BulkFilter } from './filters'

export type BulkName = 'cancel' | 'retry' | 'priority' | 'lane' | 'tag'

/** Chosen runs with the statuses that the page has read, or everything that matches a filter. */
export type Selected = { ids: string[]; statuses: string[] } | { filter: BulkFilter }

/** How many of the chosen runs the action can change; null if the server has to count. */
export function changeable(action: BulkName, selected: Selected): number | null {
  if (!('ids' in selected)) return null
  return selected.statuses.filter((status) => mayChange(action, status)).length
}

function mayChange(action: BulkName, status: string): boolean {
  if (action === 'tag') return true
  if (action === 'retry') return status === 'failed'
  return !isEnded(status) && (action === 'cancel' || status !== 'running')
}

export interface BulkOptions {
  priority: number
  lane: string
  add: string[]
  remove: string[]
  latest: boolean
}

export const BULK_LABELS: Record<BulkName, string> = {
  cancel: 'Cancel',
  retry: 'Retry',
  priority: 'Change the priority',
  lane: 'Move to a lane',
  tag: 'Change tags',
}

const APPLIES: Record<BulkName, string> = {
  cancel: 'Open runs are cancelled. Runs that have ended stay as they are.',
  retry: 'Failed runs continue after their last recorded step. Other runs stay as they are.',
  priority: 'Waiting runs get the priority. Running and ended runs stay as they are.',
  lane: 'Waiting runs move to the lane. Running and ended runs stay where they are.',
  tag: 'All of them get and lose these tags, whatever their status. Their other tags stay.',
}

export function optionsOf(action: BulkName, options: BulkOptions): Record<string, unknown> {
  if (action === 'priority') return { priority: options.priority }
  if (action === 'lane') return { lane: options.lane }
  if (action === 'tag') return { add: options.add, remove: options.remove }
  if (action === 'retry') return { latest: options.latest }
  return {}
}

export function bulkRequest(action: BulkName, selected: Selected, options: BulkOptions, dryRun = false): ActionRequest {
  const body: Record<string, unknown> = { action, options: optionsOf(action, options) }
  if ('ids' in selected) body.run_ids = selected.ids
  else body.filter = selected.filter
  if (dryRun) body.dry_run = true
  return { method: 'post', path: '/api/v2/bulk', body, cli: cliOf(action, selected, options) }
}

/** The options of `runlane bulk start` by the fields of a filter. A filter with another field has no command. */
const CLI_OPTIONS: Partial<Record<keyof BulkFilter, string>> = {
  status: '--status', target: '--task', lane: '--lane', ordering_key: '--key', tags: '--tag', schedule_id: '--schedule', text: '--text', parent: '--parent',
  forked_from: '--forked-from', worker: '--worker', session: '--session', error_code: '--error', definition: '--definition', min_cost_usd: '--min-cost', max_cost_usd: '--max-cost',
}

function cliOf(action: BulkName, selected: Selected, options: BulkOptions): string | undefined {
  const words = 'ids' in selected ? selected.ids.flatMap((id) => ['--run', id]) : filterWords(selected.filter)
  return words === null ? undefined : asCli('bulk', 'start', action, ...words, ...optionWords(action, options))
}

function filterWords(filter: BulkFilter): string[] | null {
  const words: string[] = []
  for (const [name, value] of Object.entries(filter)) {
    if (value === undefined || value === null) continue
    const option = CLI_OPTIONS[name as keyof BulkFilter]
    if (name === 'roots') words.push('--roots')
    else if (option === undefined) return null
    else for (const one of [value].flat()) words.push(option, String(one))
  }
  return words
}

function optionWords(action: BulkName, options: BulkOptions): string[] {
  if (action === 'priority') return ['--priority', String(options.priority)]
  if (action === 'lane') return ['--to', options.lane]
  if (action === 'tag') return [...options.add.flatMap((tag) => ['--add', tag]), ...options.remove.flatMap((tag) => ['--remove', tag])]
  return action === 'retry' && options.latest ? ['--latest'] : []
}

/** The number of runs above which the number must be typed. */
export const TYPED_FROM = 100

export function consequence(action: BulkName, total: number, selectedCount: number | null): string {
  const kept = selectedCount === null ? 0 : selectedCount - total
  const first = `${plural(total, 'run')} will be changed${kept > 0 ? `; ${plural(kept, 'selected run')} cannot be and ${kept === 1 ? 'stays' : 'stay'} as ${kept === 1 ? 'it is' : 'they are'}` : ''}.`
  return `${first} ${APPLIES[action]} A run whose status has changed by then is refused and listed in the result.`
}
