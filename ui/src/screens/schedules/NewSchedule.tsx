/* Create a schedule: what, when, and what happens when runs overlap or slots are missed. */
import { CalendarPlus } from 'lucide-react'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Button } from '@/parts/Button'
import { Field, Select, TextArea, TextInput } from '@/parts/form/Field'
import { useTargets } from '@/screens/start/targets'
import { Preview } from './Preview'
import { CATCH_UPS, cliOf, emptyDraft, OVERLAPS, PRESETS, previewOf, readSchedule, type ScheduleDraft, type Times } from './scheduleForm'

type Change = (changes: Partial<ScheduleDraft>) => void

function zones(current: string): [string, string][] {
  const all = 'supportedValuesOf' in Intl ? Intl.supportedValuesOf('timeZone') : []
  return [...new Set(['UTC', current, ...all])].map((zone) => [zone, zone])
}

function TimesFields({ draft, change }: { draft: ScheduleDraft; change: Change }) {
  return (
    <div className="grid gap-3 sm:grid-cols-2">
      <Field label="Times">
        {(ids) => <Select {...ids} value={draft.times} options={[['cron', 'By a cron expression'], ['every', 'At an interval'], ['at', 'Once']]} onChange={(event) => change({ times: event.target.value as Times })} />}
      </Field>
      {draft.times === 'cron' && (
        <Field label="Cron expression" hint={<>Minute, hour, day, month, weekday. <select aria-label="Presets" value="" onChange={(event) => change({ cron: event.target.value })} className="rounded-sm border border-line bg-surface"><option value="">Presets</option>{PRESETS.map(([cron, label]) => <option key={cron} value={cron}>{label}</option>)}</select></>}>
          {(ids) => <TextInput {...ids} className="font-mono" value={draft.cron} onChange={(event) => change({ cron: event.target.value })} />}
        </Field>
      )}
      {draft.times === 'every' && <Field label="Interval in seconds">{(ids) => <TextInput {...ids} inputMode="numeric" value={draft.every} onChange={(event) => change({ every: event.target.value })} />}</Field>}
      {draft.times === 'at' && <Field label="Time" hint="In your time zone.">{(ids) => <TextInput {...ids} type="datetime-local" value={draft.at} onChange={(event) => change({ at: event.target.value })} />}</Field>}
      <Field label="Time zone">{(ids) => <Select {...ids} value={draft.zone} options={zones(draft.zone)} onChange={(event) => change({ zone: event.target.value })} />}</Field>
    </div>
  )
}

function TargetFields({ draft, change }: { draft: ScheduleDraft; change: Change }) {
  const { targets } = useTargets()
  return (
    <>
      <div className="grid gap-3 sm:grid-cols-2">
        <Field label="Id" required hint="Letters, digits, dashes and underscores.">{(ids) => <TextInput {...ids} data-autofocus value={draft.id} onChange={(event) => change({ id: event.target.value })} />}</Field>
        <Field label="Starts" required>
          {(ids) => (
            <Select
              {...ids}
              value={draft.name === '' ? '' : `${draft.kind}:${draft.name}`}
              options={[['', 'Choose what to start'], ...targets.map((target) => [`${target.kind}:${target.name}`, `${target.name} (${target.kind})`] as [string, string])]}
              onChange={(event) => {
                const [kind = 'task', ...name] = event.target.value.split(':')
                change({ kind: kind as ScheduleDraft['kind'], name: name.join(':') })
              }}
            />
          )}
        </Field>
      </div>
      {draft.kind !== 'task' && <Field label="Message">{(ids) => <TextInput {...ids} value={draft.message} onChange={(event) => change({ message: event.target.value })} />}</Field>}
      <Field label="Input" hint="A JSON object">{(ids) => <TextArea {...ids} mono rows={3} value={draft.input} onChange={(event) => change({ input: event.target.value })} />}</Field>
    </>
  )
}

function NewScheduleDialog({ onClose }: { onClose: () => void }) {
  const [draft, setDraft] = useState(emptyDraft)
  const [, navigate] = useLocation()
  const change: Change = (changes) => setDraft({ ...draft, ...changes })
  const { body, problem } = readSchedule(draft)
  return (
    <ActionDialog
      wide
      onClose={onClose}
      action={{
        id: 'new-schedule',
        label: 'New schedule',
        icon: CalendarPlus,
        refused: problem,
        title: 'New schedule',
        consequence: 'The schedule is active at once and starts a run at each slot below. It can be paused at any time.',
        verb: 'Create the schedule',
        request: body === null ? { method: 'post', path: '/api/v2/schedules', body: {} } : request('post', '/api/v2/schedules', { body, cli: cliOf(body) }),
        done: `The schedule ${draft.id} is active.`,
        after: () => navigate(`/schedules/${encodeURIComponent(draft.id.trim())}`),
      }}
    >
      <TargetFields draft={draft} change={change} />
      <TimesFields draft={draft} change={change} />
      <Preview times={previewOf(draft)} />
      <div className="grid gap-3 sm:grid-cols-2">
        <Field label="When runs overlap">{(ids) => <Select {...ids} value={draft.overlap} options={OVERLAPS} onChange={(event) => change({ overlap: event.target.value as ScheduleDraft['overlap'] })} />}</Field>
        <Field label="After an outage">{(ids) => <Select {...ids} value={draft.catchUp} options={CATCH_UPS} onChange={(event) => change({ catchUp: event.target.value as ScheduleDraft['catchUp'] })} />}</Field>
      </div>
    </ActionDialog>
  )
}

export function NewSchedule() {
  const [open, setOpen] = useState(false)
  return (
    <>
      <Button look="main" icon={CalendarPlus} onClick={() => setOpen(true)}>New schedule</Button>
      {open && <NewScheduleDialog onClose={() => setOpen(false)} />}
    </>
  )
}
