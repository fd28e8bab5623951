/* The changes of a lane, each with its exact consequence. */
import { CirclePause, CirclePlay, OctagonPause, Trash2, Unlock } from 'lucide-react'
import type { components } from '@/api/schema'
import type { Lane } from '@/api/types'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { type Action, request } from '@/parts/action/action'
import { field, type FormValues } from '@/parts/action/FormAction'

type Hold = components['schemas']['LaneHold']

export function enableAction(lane: Lane): Action {
  const enabled = !lane.enabled
  return {
    id: 'enable',
    label: enabled ? 'Enable' : 'Pause',
    icon: enabled ? CirclePlay : CirclePause,
    danger: !enabled,
    title: `${enabled ? 'Enable' : 'Pause'} the lane ${lane.name}`,
    consequence: enabled
      ? `The lane starts runs again: ${plural(lane.queued, 'run waits', 'runs wait')}.`
      : `The lane starts no more runs. ${plural(lane.running, 'running run finishes', 'running runs finish')}; ${plural(lane.queued, 'queued run waits', 'queued runs wait')}. When the server answers, no claim uses the old setting any more.`,
    verb: enabled ? 'Enable the lane' : 'Pause the lane',
    request: request('patch', '/api/v2/lanes/{name}', { path: { name: lane.name }, body: { enabled }, cli: asCli('lanes', 'set', lane.name, enabled ? '--enable' : '--disable') }),
    done: enabled ? 'The lane starts runs again.' : 'The lane starts no more runs.',
  }
}

export function releaseHoldAction(hold: Hold): Action {
  return {
    id: 'release-hold',
    label: 'Release',
    icon: Unlock,
    title: `Release the hold of ${hold.owner}`,
    consequence: `The hold "${hold.reason}" ends. The lane starts runs again if it has no other hold.`,
    verb: 'Release the hold',
    request: request('delete', '/api/v2/lanes/{name}/holds/{hold_id}', { path: { name: hold.lane, hold_id: hold.hold_id }, cli: asCli('lanes', 'release', hold.lane, hold.hold_id) }),
    done: 'The hold is released.',
  }
}

export function deleteLaneAction(lane: Lane): Action {
  const busy = lane.running + lane.queued > 0 || lane.kinds.length > 0 || lane.held
  return {
    id: 'delete-lane',
    label: 'Delete',
    icon: Trash2,
    danger: true,
    refused: lane.name === 'default' ? 'The default lane cannot be deleted.' : busy ? 'A lane with runs, assigned kinds or holds cannot be deleted.' : null,
    title: `Delete the lane ${lane.name}`,
    consequence: 'Its settings are deleted. A run of a kind whose code names this lane creates it again with default settings.',
    verb: 'Delete the lane',
    typed: lane.name,
    request: request('delete', '/api/v2/lanes/{name}', { path: { name: lane.name }, cli: asCli('lanes', 'delete', lane.name) }),
    done: `The lane ${lane.name} is deleted.`,
  }
}

export function holdAction(lane: Lane, values: FormValues): Action {
  const minutes = values.minutes as number | undefined
  const body = { reason: String(values.reason ?? ''), ...(minutes === undefined ? {} : { expires_in_seconds: minutes * 60 }) }
  return {
    id: 'hold',
    label: 'Hold',
    icon: OctagonPause,
    title: `Hold the lane ${lane.name}`,
    consequence: `The lane starts nothing ${minutes === undefined ? 'until the hold is released' : `for ${plural(minutes, 'minute')}, or until the hold is released`}. ${plural(lane.running, 'running run finishes', 'running runs finish')}; ${plural(lane.queued, 'queued run waits', 'queued runs wait')}. Other holds stay independent.`,
    verb: 'Hold the lane',
    request: request('post', '/api/v2/lanes/{name}/holds', {
      path: { name: lane.name },
      body,
      cli: asCli('lanes', 'hold', lane.name, '--reason', body.reason, ...(minutes === undefined ? [] : ['--minutes', String(minutes)])),
    }),
    done: 'The lane is held.',
  }
}

export const SETTINGS = [
  field('max_slots', 'Slots', { control: 'integer', minimum: 0, maximum: 10_000, hint: 'Maximum number of concurrent runs in the cluster; 0 starts nothing.' }),
  field('uncapped', 'No cap', { control: 'boolean' }),
  field('poll_interval_ms', 'Poll interval in milliseconds', { control: 'integer', minimum: 50, maximum: 120_000, hint: 'How often idle workers look without a wake-up.' }),
  field('fair', 'Tenants share the lane fairly', { control: 'boolean' }),
]

export function settingsOf(lane: Lane): FormValues {
  return { max_slots: lane.max_slots, uncapped: lane.max_slots === null, poll_interval_ms: lane.poll_interval_ms, fair: lane.fair }
}

export function settingsAction(lane: Lane, values: FormValues): Action {
  const slots = values.uncapped === true ? null : ((values.max_slots as number | undefined) ?? lane.max_slots)
  const poll = (values.poll_interval_ms as number | undefined) ?? lane.poll_interval_ms
  const fair = values.fair === true
  const words = ['lanes', 'set', lane.name]
  const body: components['schemas']['PatchLane'] = {}
  if (slots !== lane.max_slots) {
    body.max_slots = slots
    words.push(...(slots === null ? ['--uncapped'] : ['--max-slots', String(slots)]))
  }
  if (poll !== lane.poll_interval_ms) {
    body.poll_interval_ms = poll
    words.push('--poll-interval-ms', String(poll))
  }
  if (fair !== lane.fair) {
    body.fair = fair
    words.push(fair ? '--fair' : '--first-come')
  }
  const over = slots === null ? 0 : Math.max(0, lane.running - slots)
  return {
    id: 'lane-settings',
    label: 'Settings',
    icon: CirclePlay,
    refused: Object.keys(body).length === 0 ? 'Nothing is changed.' : null,
    title: `Settings of the lane ${lane.name}`,
    consequence: `${slots === null ? 'The lane has no cap; only the slots of workers bound it.' : slots === 0 ? 'The lane starts nothing.' : `At most ${plural(slots, 'run')} of the lane run at once, in the whole cluster.`}${over > 0 ? ` ${plural(over, 'run')} above the cap finish; none is interrupted.` : ''} Exact when the server answers.`,
    verb: 'Save the settings',
    request: request('patch', '/api/v2/lanes/{name}', { path: { name: lane.name }, body, cli: asCli(...words) }),
    done: 'The settings are stored.',
  }
}
