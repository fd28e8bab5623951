/* Changes of many dead letters: the request, and what it does. */
import { Check, type LucideIcon, RotateCw, Trash2, UserRound } from 'lucide-react'
import type { components } from '@/api/schema'
import { asCli } from '@/format/command'
import { type ActionRequest, request } from '@/parts/action/action'
import { OPEN_LETTERS } from './letterText'

export type LetterFilter = components['schemas']['LetterFilterBody']
export type LetterAction = 'retry' | 'discard' | 'acknowledge' | 'assign'
export type LetterSelection = { ids: string[] } | { filter: LetterFilter }

export interface LetterOptions {
  kind: 'resume' | 'restart'
  latest: boolean
  note: string
  to: string
  rate: string
}

export const NO_OPTIONS: LetterOptions = { kind: 'resume', latest: false, note: '', to: '', rate: '' }

export const LETTER_ACTIONS: Record<LetterAction, { label: string; icon: LucideIcon; danger: boolean }> = {
  retry: { label: 'Replay', icon: RotateCw, danger: false },
  acknowledge: { label: 'Acknowledge', icon: Check, danger: false },
  assign: { label: 'Assign', icon: UserRound, danger: false },
  discard: { label: 'Discard', icon: Trash2, danger: true },
}

const CLI: Record<LetterAction, string> = { retry: 'retry', discard: 'discard', acknowledge: 'ack', assign: 'assign' }
const CLI_FILTERS: Partial<Record<keyof LetterFilter, string>> = { target: '--target', lane: '--lane', code: '--code', fingerprint: '--fingerprint', step: '--step', text: '--text', assigned_to: '--assigned-to', state: '--state' }
/** Filters that a command does not have. */
const CLI_WITHOUT: Record<LetterAction, readonly string[]> = { retry: [], discard: ['assigned_to'], acknowledge: ['assigned_to', 'state'], assign: [] }

function optionsOf(action: LetterAction, options: LetterOptions): Record<string, unknown> {
  if (action === 'retry') return { kind: options.kind, latest: options.latest }
  if (action === 'assign') return { to: options.to === '' ? null : options.to }
  return options.note === '' ? {} : { note: options.note }
}

/** The words of a filter; null if the command cannot select the same letters: it must not change more than the button. */
function filterWords(action: LetterAction, filter: LetterFilter): string[] | null {
  if (action === 'assign') return null
  const words: string[] = []
  for (const [name, value] of Object.entries(filter)) {
    if (value === undefined || value === null) continue
    // Without a state, commands select the letters that the page selects at first.
    if (name === 'state' && [...(value as string[])].sort().join(' ') === [...OPEN_LETTERS].sort().join(' ')) continue
    const option = CLI_FILTERS[name as keyof LetterFilter]
    if (option === undefined || CLI_WITHOUT[action].includes(name)) return null
    for (const one of [value].flat()) words.push(option, String(one))
  }
  return words
}

function cliOf(action: LetterAction, selection: LetterSelection, options: LetterOptions): string | undefined {
  const selected = 'ids' in selection ? selection.ids : filterWords(action, selection.filter)
  if (selected === null) return undefined
  const words = ['dead-letters', CLI[action], ...selected]
  if (action === 'retry' && options.kind !== 'resume') words.push('--kind', options.kind)
  if (action === 'retry' && options.latest) words.push('--latest')
  if (action === 'retry' && options.rate !== '') words.push('--rate', options.rate)
  if (action === 'assign' && options.to !== '') words.push('--to', options.to)
  if ((action === 'discard' || action === 'acknowledge') && options.note !== '') words.push('--note', options.note)
  return asCli(...words)
}

export function letterRequest(action: LetterAction, selection: LetterSelection, options: LetterOptions, dryRun = false): ActionRequest {
  const rate = Number(options.rate)
  return request('post', '/api/v2/dead-letters/bulk', {
    body: {
      action,
      options: optionsOf(action, options),
      ...('ids' in selection ? { run_ids: selection.ids } : { filter: selection.filter }),
      ...(options.rate !== '' && Number.isFinite(rate) ? { rate } : {}),
      ...(dryRun ? { dry_run: true } : {}),
    },
    cli: cliOf(action, selection, options),
  })
}

export function letterConsequence(action: LetterAction, total: number, options: LetterOptions): string {
  const runs = total === 1 ? '1 run' : `${total.toLocaleString('en-US')} runs`
  if (action === 'retry') {
    return options.kind === 'resume'
      ? `${runs} will be queued again under the same ids and continue after the last recorded step; recorded steps are not executed again. A run that fails again comes back as a dead letter.`
      : `${runs} will be started again from the beginning with the same input, as new runs. Steps that were recorded are executed again.`
  }
  if (action === 'discard') return `${runs} stay failed, and the dead letters are closed. The runs are kept until retention deletes them. This cannot be undone.`
  if (action === 'assign') return options.to === '' ? `${runs} will have no owner.` : `${runs} will belong to ${options.to}. Nothing is executed.`
  return `${runs} are marked as looked at: no longer counted, still listed. Nothing is executed.`
}
