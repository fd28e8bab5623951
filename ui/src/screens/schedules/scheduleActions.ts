/* The changes of a schedule that need at most a short form. */
import { CirclePause, CirclePlay, Trash2, Zap } from 'lucide-react'
import { formatJson } from '@/api/json'
import { asCli } from '@/format/command'
import { type Action, request } from '@/parts/action/action'
import type { FormValues } from '@/parts/action/FormAction'
import type { Schedule } from './scheduleForm'

export function pauseAction(schedule: Schedule, values: FormValues): Action {
  const reason = String(values.reason ?? '')
  return {
    id: 'pause', label: 'Pause', icon: CirclePause, danger: true, title: `Pause ${schedule.id}`, verb: 'Pause the schedule',
    consequence: 'The schedule starts nothing until it is resumed. Runs that it has started continue. Slots of the pause can be started when it is resumed.',
    request: request('post', '/api/v2/schedules/{schedule_id}/pause', { path: { schedule_id: schedule.id }, body: { reason }, cli: asCli('schedules', 'pause', schedule.id, '--reason', reason) }),
    done: 'The schedule is paused.',
  }
}

export function resumeAction(schedule: Schedule, values: FormValues): Action {
  const catchUp = (values.catch_up as 'none' | 'latest' | 'all' | undefined) ?? 'none'
  const effect = { none: 'Slots of the pause are not started.', latest: 'The latest slot of the pause is started now.', all: 'Every slot of the pause is started now.' }[catchUp]
  return {
    id: 'resume', label: 'Resume', icon: CirclePlay, title: `Resume ${schedule.id}`, verb: 'Resume the schedule',
    consequence: `The schedule fires again from now on. ${effect}`,
    request: request('post', '/api/v2/schedules/{schedule_id}/resume', { path: { schedule_id: schedule.id }, body: { catch_up: catchUp }, cli: asCli('schedules', 'resume', schedule.id, '--catch-up', catchUp) }),
    done: 'The schedule is active.',
  }
}

export function triggerAction(schedule: Schedule, values: FormValues): Action {
  const input = values.input as Record<string, unknown> | undefined
  return {
    id: 'trigger', label: 'Run now', icon: Zap, title: `Run ${schedule.id} now`, verb: 'Start a run now',
    consequence: 'One run is started now, even if another is open. The slots of the schedule stay as they are.',
    request: request('post', '/api/v2/schedules/{schedule_id}/trigger', {
      path: { schedule_id: schedule.id },
      body: { overlap: 'allow', ...(input === undefined ? {} : { input }) },
      cli: asCli('schedules', 'trigger', schedule.id, ...(input === undefined ? [] : ['--input', formatJson(input, 0)])),
    }),
    done: 'The run is started.',
  }
}

export function deleteScheduleAction(schedule: Schedule): Action {
  return {
    id: 'delete-schedule', label: 'Delete', icon: Trash2, danger: true, title: `Delete ${schedule.id}`, verb: 'Delete the schedule', typed: schedule.id,
    consequence: `The schedule and the list of its ${schedule.fired} firings are deleted. Its runs stay. This cannot be undone.`,
    request: request('delete', '/api/v2/schedules/{schedule_id}', { path: { schedule_id: schedule.id }, cli: asCli('schedules', 'delete', schedule.id) }),
    done: 'The schedule is deleted.',
  }
}
