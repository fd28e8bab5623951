/* What times mean: in words, and the next slots in the schedule's zone and in the reader's. */
import { useQuery } from '@tanstack/react-query'
import { call, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import { useLater } from '@/app/later'
import { Time } from '@/parts/Time'
import type { PreviewSchedule } from './scheduleForm'

type Slots = ResponseOf<'/api/v2/schedules/preview', 'post'>

/** `2026-11-18 07:00:00 +01:00`: a time with its zone, as people read it. */
function zonedText(iso: string): string {
  return iso.replace('T', ' ').replace(/(?:\+00:00|Z)$/, ' UTC').replace(/([+-]\d\d:\d\d)$/, ' $1')
}

export function SlotList({ slots }: { slots: { slot: string; local: string; due_at: string }[] }) {
  if (slots.length === 0) return <p className="text-soft">No slot follows.</p>
  return (
    <table className="text-left">
      <thead>
        <tr className="text-2xs text-faint"><th className="pr-6 font-normal">In the zone of the schedule</th><th className="pr-6 font-normal">Your time</th><th className="font-normal">From now</th></tr>
      </thead>
      <tbody>
        {slots.map((slot) => (
          <tr key={slot.slot}><td className="tabular pr-6" title={slot.local}>{zonedText(slot.local)}</td><td className="pr-6"><Time at={slot.slot} style="exact" /></td><td><Time at={slot.slot} style="relative" /></td></tr>
        ))}
      </tbody>
    </table>
  )
}

export function Preview({ times }: { times: PreviewSchedule | null }) {
  const asked = useLater(times, 300)
  const query = useQuery<Slots, ApiError>({
    queryKey: ['schedules', 'preview', asked],
    queryFn: ({ signal }) => call('post', '/api/v2/schedules/preview', { body: asked!, signal }),
    enabled: asked !== null,
    retry: false,
    placeholderData: (before) => before,
  })
  return (
    <section aria-label="Preview of the times" aria-live="polite" className="min-h-36 rounded-md border border-line bg-sunken px-3 py-2">
      {asked === null ? (
        <p className="text-soft">The times are not complete.</p>
      ) : query.error !== null ? (
        <>
          <p className="text-bad">{query.error.message}</p>
          {query.error.fields.map((problem) => <p key={problem.field} className="text-xs text-bad">{problem.field}: {problem.message}</p>)}
        </>
      ) : query.data === undefined ? (
        <p className="text-soft">Asking the server …</p>
      ) : (
        <div className="flex flex-col gap-1.5">
          <p className="font-medium">{query.data.description}</p>
          <SlotList slots={query.data.next} />
          {query.data.warnings.map((warning) => <p key={warning} className="text-wait">{warning}</p>)}
        </div>
      )}
    </section>
  )
}
