/* What was decided about a slot. */
import type { components } from '@/api/schema'
import { statusText, type Tone } from '@/text/status'

export const FIRINGS: Record<string, { word: string; tone: Tone }> = {
  started: { word: 'started', tone: 'ok' },
  buffered: { word: 'queued behind the open run', tone: 'wait' },
  skipped_overlap: { word: 'skipped: a run was open', tone: 'idle' },
  missed: { word: 'missed', tone: 'wait' },
  replaced: { word: 'replaced by a later slot', tone: 'idle' },
  refused: { word: 'refused', tone: 'bad' },
  failed_to_start: { word: 'failed to start', tone: 'bad' },
}

export function firingText(outcome: string): { word: string; tone: Tone } {
  return FIRINGS[outcome] ?? { word: outcome.replaceAll('_', ' '), tone: 'idle' }
}

/** The outcome of a slot: the status of its run, or what was decided if it started none. `hollow`: it started nothing on purpose. */
export function firingStanding(firing: components['schemas']['Firing']): { word: string; tone: Tone; hollow: boolean } {
  if (firing.run_status !== null) return { ...statusText(firing.run_status), hollow: false }
  const { word, tone } = firingText(firing.outcome)
  // The run was deleted after its retention time: whether it completed is not known any more.
  if (firing.outcome === 'started') return { word: 'started; the run is no longer kept', tone: 'idle', hollow: false }
  return { word, tone, hollow: tone === 'idle' }
}
