/* The states of dead letters in words. */
import type { Tone } from '@/text/status'

export const LETTER_STATES: Record<string, { word: string; tone: Tone; meaning: string }> = {
  open: { word: 'open', tone: 'bad', meaning: 'The run failed for good and has not been looked at.' },
  acknowledged: { word: 'acknowledged', tone: 'wait', meaning: 'Looked at; no longer counted, still listed.' },
  retrying: { word: 'retrying', tone: 'busy', meaning: 'The run was retried and has not ended.' },
  resolved: { word: 'resolved', tone: 'ok', meaning: 'A retry has completed.' },
  discarded: { word: 'discarded', tone: 'idle', meaning: 'Nothing more will be done.' },
}

export const OPEN_LETTERS = ['open', 'acknowledged'] as const

export type LetterStateName = 'open' | 'acknowledged' | 'retrying' | 'resolved' | 'discarded'
