/* What was decided about a slot. */
import type { Tone } from '@/text/status'

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
