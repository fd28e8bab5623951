/* A worker: its states in words, and the change that drains it. */
import { CirclePause, CirclePlay } from 'lucide-react'
import type { components } from '@/api/schema'
import { useNow } from '@/app/clock'
import { asCli } from '@/format/command'
import { formatTicking } from '@/format/duration'
import { formatBytes, plural } from '@/format/number'
import { shortId } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { cx } from '@/parts/classes'
import { Chip } from '@/parts/Meter'
import { Time } from '@/parts/Time'
import type { Tone } from '@/text/status'

export type Worker = components['schemas']['WorkerInfo']

/** A heartbeat older than this is late; the lease ends soon after. */
const LATE_SECONDS = 5

export const TONES: Record<string, Tone> = { online: 'ok', draining: 'wait', lost: 'bad', stopped: 'idle' }

export function isGone(worker: Worker): boolean {
  return worker.ended_at !== null || worker.status === 'lost' || worker.status === 'stopped'
}

export function lanesOf(worker: Worker): string {
  return worker.lanes.length === 0 || worker.lanes.includes('*') ? 'all' : worker.lanes.join(', ')
}

export function memoryOf(worker: Worker): string {
  return worker.memory_bytes === null || worker.memory_bytes === undefined || isGone(worker) ? '–' : formatBytes(worker.memory_bytes)
}

export function cpuOf(worker: Worker): string {
  return worker.cpu_percent === null || worker.cpu_percent === undefined || isGone(worker) ? '–' : `${Math.round(worker.cpu_percent)}%`
}

/** The status; while a worker stops, also how long its runs may still take. */
export function WorkerStatus({ worker }: { worker: Worker }) {
  const until = worker.status === 'draining' ? worker.drain_until : null
  const now = useNow(until !== null)
  const left = until === null ? null : Math.max(0, (Date.parse(until) - now) / 1_000)
  const title = until !== null ? 'The process stops. Runs that it still executes when the time is over continue elsewhere.' : worker.drain_requested_at !== null ? 'It claims no more runs; its process continues.' : undefined
  return <Chip tone={TONES[worker.status] ?? 'idle'} title={title}>{worker.status}{left !== null && <span className="tabular">, {formatTicking(left)} left</span>}</Chip>
}

export function Heartbeat({ worker }: { worker: Worker }) {
  const now = useNow(!isGone(worker))
  const late = !isGone(worker) && (now - Date.parse(worker.last_heartbeat)) / 1_000 > LATE_SECONDS
  return <span className={cx(late && 'font-medium text-bad')}><Time at={worker.last_heartbeat} style="relative" />{late && ' (late)'}</span>
}

/** Drain every worker of a version, or let them claim runs again if all are draining. `others` counts live workers of other versions. */
export function drainVersionAction(version: string, workers: Worker[], others: number): Action {
  const claiming = workers.filter((worker) => worker.status !== 'draining')
  const runs = claiming.reduce((sum, worker) => sum + worker.active_jobs, 0)
  if (claiming.length === 0) {
    return {
      id: 'resume-version', label: 'Cancel the drain', icon: CirclePlay, title: `Let the workers of ${version} claim runs again`, verb: 'Cancel the drain',
      consequence: `${plural(workers.length, 'worker claims', 'workers claim')} runs again, from the next heartbeat on.`,
      request: request('post', '/api/v2/workers/resume', { body: { version }, cli: asCli('admin', 'drain', '--version', version, '--cancel') }),
      done: 'The workers claim runs again.',
    }
  }
  return {
    id: 'drain-version', label: 'Drain all', icon: CirclePause, danger: true, title: `Drain the workers of ${version}`, verb: `Drain ${plural(claiming.length, 'worker')}`,
    consequence: `${plural(claiming.length, 'worker claims', 'workers claim')} no more runs, from the next heartbeat on. ${plural(runs, 'run finishes', 'runs finish')} there. ${others === 0 ? 'No worker of another version is online, so new runs wait.' : `New runs start on ${plural(others, 'worker')} of other versions.`} The processes continue, and the drain can be cancelled.`,
    request: request('post', '/api/v2/workers/drain', { body: { version }, cli: asCli('admin', 'drain', '--version', version) }),
    done: 'The workers are draining.',
  }
}

export function drainAction(worker: Worker): Action {
  const draining = worker.status === 'draining'
  const path = { worker_id: worker.worker_id }
  if (draining) {
    return {
      id: 'resume-worker', label: 'Cancel the drain', icon: CirclePlay, title: `Let ${shortId(worker.worker_id)} claim runs again`, verb: 'Cancel the drain',
      consequence: 'The worker claims runs again from its next heartbeat on.',
      request: request('post', '/api/v2/workers/{worker_id}/resume', { path, cli: asCli('admin', 'drain', worker.worker_id, '--cancel') }),
      done: 'The worker claims runs again.',
    }
  }
  return {
    id: 'drain-worker', label: 'Drain', icon: CirclePause, danger: true, title: `Drain ${shortId(worker.worker_id)}`, verb: 'Drain the worker',
    consequence: `The worker claims no more runs, from its next heartbeat on. ${plural(worker.active_jobs, 'run finishes', 'runs finish')} there; others start on other workers. Its process continues, and the drain can be cancelled.`,
    request: request('post', '/api/v2/workers/{worker_id}/drain', { path, cli: asCli('admin', 'drain', worker.worker_id) }),
    done: 'The worker is draining.',
  }
}
