/* Why runs of a lane wait, in one sentence. */
import type { Lane } from '@/api/types'
import { plural } from '@/format/number'
import type { Tone } from '@/text/status'

export interface Verdict {
  text: string
  tone: Tone
}

export interface ServingWorker {
  status: string
  lanes: string[]
  active_jobs: number
  max_jobs: number
}

export function isServing(worker: ServingWorker): boolean {
  return worker.status === 'online'
}

/** Workers without a list of lanes serve all of them. */
export function workersOf(lane: string, workers: ServingWorker[]): ServingWorker[] {
  return workers.filter((worker) => isServing(worker) && (worker.lanes.length === 0 || worker.lanes.includes('*') || worker.lanes.includes(lane)))
}

export function verdictOf(lane: Lane, workers: ServingWorker[] | undefined): Verdict {
  const waits = plural(lane.queued, 'run waits', 'runs wait')
  if (!lane.enabled) return { text: lane.queued === 0 ? 'Disabled: starts nothing.' : `${waits}: the lane is disabled.`, tone: 'bad' }
  if (lane.held) return { text: lane.queued === 0 ? 'Held: starts nothing.' : `${waits}: the lane is held.`, tone: 'person' }
  if (lane.max_slots === 0) return { text: lane.queued === 0 ? 'Paused: no slots.' : `${waits}: the lane has no slots.`, tone: 'person' }
  if (workers !== undefined) {
    const serving = workersOf(lane.name, workers)
    if (serving.length === 0) return { text: lane.queued === 0 ? 'No worker serves this lane.' : `${waits}: no worker serves this lane.`, tone: lane.queued === 0 ? 'idle' : 'bad' }
    if (lane.queued > 0 && lane.max_slots !== null && lane.running >= lane.max_slots) return { text: `${waits}: all ${lane.max_slots} slots are in use.`, tone: 'wait' }
    if (lane.queued > 0 && serving.every((worker) => worker.active_jobs >= worker.max_jobs)) return { text: `${waits}: every worker is full.`, tone: 'wait' }
  }
  if (lane.queued > 0) return { text: `${waits}; starting.`, tone: 'busy' }
  return lane.running > 0 ? { text: 'Keeps up.', tone: 'ok' } : { text: 'Idle.', tone: 'idle' }
}
