/* The statuses of runs and the outcomes of steps: word, tone and icon. Unknown ones are shown as they are. */
import {
  Ban,
  Check,
  CircleDashed,
  CircleDot,
  CirclePause,
  Clock,
  Hand,
  type LucideIcon,
  Lock,
  RotateCw,
  TriangleAlert,
  X,
} from 'lucide-react'

export type Tone = 'ok' | 'bad' | 'busy' | 'wait' | 'person' | 'idle'

export interface StatusText {
  word: string
  tone: Tone
  icon: LucideIcon
  /** One sentence for people who meet the status for the first time. */
  meaning: string
}

export const RUN_STATUSES = {
  queued: { word: 'queued', tone: 'wait', icon: CircleDashed, meaning: 'Ready to start; waits for a free slot.' },
  running: { word: 'running', tone: 'busy', icon: CircleDot, meaning: 'A worker executes it.' },
  paused: { word: 'paused', tone: 'person', icon: CirclePause, meaning: 'Waits for a person, a time or an event, without a worker.' },
  awaiting_approval: { word: 'awaiting approval', tone: 'person', icon: Hand, meaning: 'Held until a person approves the start.' },
  scheduled: { word: 'scheduled', tone: 'wait', icon: Clock, meaning: 'Starts at its due time.' },
  blocked: { word: 'blocked', tone: 'wait', icon: Lock, meaning: 'Waits for its ordering key, other runs or a limit.' },
  completed: { word: 'completed', tone: 'ok', icon: Check, meaning: 'Ended with a result.' },
  failed: { word: 'failed', tone: 'bad', icon: X, meaning: 'Ended with an error after its last attempt.' },
  cancelled: { word: 'cancelled', tone: 'idle', icon: Ban, meaning: 'Ended because it was cancelled.' },
} satisfies Record<string, StatusText>

export const OPEN_STATUSES = ['queued', 'running', 'paused', 'awaiting_approval', 'scheduled', 'blocked'] as const
export const ENDED_STATUSES = ['completed', 'failed', 'cancelled'] as const

const OUTCOMES: Record<string, StatusText> = {
  done: { word: 'done', tone: 'ok', icon: Check, meaning: 'Recorded; it is never executed again.' },
  retrying: { word: 'retrying', tone: 'wait', icon: RotateCw, meaning: 'Failed and is tried again.' },
  handled: { word: 'handled', tone: 'wait', icon: TriangleAlert, meaning: 'Failed; its error route continues.' },
  lost: { word: 'worker lost', tone: 'bad', icon: TriangleAlert, meaning: 'The worker died; another one continued.' },
  succeeded: { word: 'succeeded', tone: 'ok', icon: Check, meaning: 'Ended with a result.' },
  released: { word: 'handed back', tone: 'idle', icon: RotateCw, meaning: 'A draining worker released the run.' },
  waiting: { word: 'waiting', tone: 'person', icon: CirclePause, meaning: 'Waits for a person, a time or an event.' },
}

export function statusText(status: string): StatusText {
  return (
    (RUN_STATUSES as Record<string, StatusText>)[status] ??
    OUTCOMES[status] ?? { word: status.replaceAll('_', ' '), tone: 'idle', icon: CircleDashed, meaning: '' }
  )
}

export function isEnded(status: string): boolean {
  return (ENDED_STATUSES as readonly string[]).includes(status)
}
