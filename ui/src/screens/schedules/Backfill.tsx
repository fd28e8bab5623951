/* Start runs for slots of the past: the exact list first, then the start. */
import { useQuery } from '@tanstack/react-query'
import { History } from 'lucide-react'
import { useState } from 'react'
import { call, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Button } from '@/parts/Button'
import { Field, Select, TextInput } from '@/parts/form/Field'
import { ErrorNote } from '@/parts/Loading'
import { Time } from '@/parts/Time'
import { firingText } from './firingText'
import { OVERLAPS, type Schedule, type ScheduleDraft } from './scheduleForm'

type Result = ResponseOf<'/api/v2/schedules/{schedule_id}/backfill', 'post'>

function moment(text: string): string | null {
  const at = Date.parse(text)
  return Number.isNaN(at) ? null : new Date(at).toISOString()
}

function BackfillDialog({ schedule, onClose }: { schedule: Schedule; onClose: () => void }) {
  const [from, setFrom] = useState('')
  const [to, setTo] = useState('')
  const [overlap, setOverlap] = useState<ScheduleDraft['overlap']>('queue_all')
  const [start, end] = [moment(from), moment(to)]
  const path = { schedule_id: schedule.id }
  const ready = start !== null && end !== null
  const dry = useQuery<Result, ApiError>({
    queryKey: ['schedules', 'backfill', schedule.id, start, end, overlap],
    queryFn: ({ signal }) => call('post', '/api/v2/schedules/{schedule_id}/backfill', { path, body: { from: start!, to: end!, overlap, dry_run: true }, signal }),
    enabled: ready,
    retry: false,
    staleTime: 0,
  })
  const firings = dry.data?.firings ?? []
  const starts = firings.filter((firing) => firing.outcome === 'started' || firing.outcome === 'buffered').length
  return (
    <ActionDialog
      wide
      onClose={onClose}
      action={{
        id: 'backfill', label: 'Backfill', icon: History, title: `Backfill ${schedule.id}`,
        refused: !ready ? 'Choose a time range.' : dry.data === undefined ? (dry.error?.message ?? 'The server lists the slots.') : starts === 0 ? 'No slot of this range would start a run.' : null,
        consequence: dry.data === undefined ? '' : `${plural(starts, 'run')} will be started, for the slots below. Slots that have already fired are not repeated.`,
        verb: dry.data === undefined ? 'Start the runs' : `Start ${plural(starts, 'run')}`,
        typed: starts > 100 ? String(starts) : undefined,
        request: request('post', '/api/v2/schedules/{schedule_id}/backfill', {
          path,
          body: { from: start ?? '', to: end ?? '', overlap },
          cli: asCli('schedules', 'backfill', schedule.id, '--from', start ?? 'FROM', '--to', end ?? 'TO', '--overlap', overlap),
        }),
        done: 'The runs of the past slots are started.',
      }}
    >
      <div className="grid gap-3 sm:grid-cols-3">
        <Field label="From" required>{(ids) => <TextInput {...ids} type="datetime-local" data-autofocus value={from} onChange={(event) => setFrom(event.target.value)} />}</Field>
        <Field label="To" required>{(ids) => <TextInput {...ids} type="datetime-local" value={to} onChange={(event) => setTo(event.target.value)} />}</Field>
        <Field label="When runs overlap">{(ids) => <Select {...ids} value={overlap} options={OVERLAPS} onChange={(event) => setOverlap(event.target.value as ScheduleDraft['overlap'])} />}</Field>
      </div>
      {dry.error !== null && <ErrorNote error={dry.error} />}
      {firings.length > 0 && (
        <ol aria-label="Slots of the range" tabIndex={0} className="max-h-60 overflow-y-auto rounded-md border border-line">
          {firings.map((firing) => (
            <li key={firing.slot} className="flex justify-between gap-4 border-b border-line px-3 py-1 last:border-b-0"><Time at={firing.slot} style="exact" /><span className="text-soft">{firing.outcome === 'started' ? 'will start' : firingText(firing.outcome).word}</span></li>
          ))}
        </ol>
      )}
    </ActionDialog>
  )
}

export function Backfill({ schedule }: { schedule: Schedule }) {
  const [open, setOpen] = useState(false)
  return (
    <>
      <Button icon={History} onClick={() => setOpen(true)}>Backfill</Button>
      {open && <BackfillDialog schedule={schedule} onClose={() => setOpen(false)} />}
    </>
  )
}
