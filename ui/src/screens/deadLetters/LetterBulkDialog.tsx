/* Change many dead letters: count, consequence, typed confirmation above 100, then a job with progress and stop. */
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { send } from '@/api/client'
import type { ApiError } from '@/api/errors'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Check, Field, Select, TextInput } from '@/parts/form/Field'
import { ErrorNote } from '@/parts/Loading'
import { TYPED_FROM } from '@/screens/runs/bulk'
import { LETTER_ACTIONS, type LetterAction, letterConsequence, type LetterOptions, letterRequest, type LetterSelection, NO_OPTIONS } from './letterBulk'

function Options({ action, options, onChange }: { action: LetterAction; options: LetterOptions; onChange: (options: LetterOptions) => void }) {
  if (action === 'retry') {
    return (
      <>
        <Field label="How">
          {(ids) => <Select {...ids} value={options.kind} options={[['resume', 'Continue after the last recorded step'], ['restart', 'Start again from the beginning']]} onChange={(event) => onChange({ ...options, kind: event.target.value as LetterOptions['kind'] })} />}
        </Field>
        <Check label="On the current versions of the definitions, where the recorded steps fit" checked={options.latest} onChange={(event) => onChange({ ...options, latest: event.target.checked })} />
        <Field label="Runs per second" hint="Empty: as fast as the server can.">
          {(ids) => <TextInput {...ids} inputMode="numeric" value={options.rate} onChange={(event) => onChange({ ...options, rate: event.target.value })} />}
        </Field>
      </>
    )
  }
  if (action === 'assign') return <Field label="Assign to" hint="A name or an address. Empty: no one.">{(ids) => <TextInput {...ids} data-autofocus value={options.to} onChange={(event) => onChange({ ...options, to: event.target.value })} />}</Field>
  return <Field label="Note" hint="Optional. Shown with the dead letter.">{(ids) => <TextInput {...ids} data-autofocus maxLength={500} value={options.note} onChange={(event) => onChange({ ...options, note: event.target.value })} />}</Field>
}

export function LetterBulkDialog({ action, selection, what, onClose, onStarted }: { action: LetterAction; selection: LetterSelection; what: string; onClose: () => void; onStarted: () => void }) {
  const [options, setOptions] = useState(NO_OPTIONS)
  const [, navigate] = useLocation()
  const counted = useQuery<{ total: number }, ApiError>({
    queryKey: ['dead-letters', 'preview', action, selection],
    queryFn: async () => (await send('post', '/api/v2/dead-letters/bulk', { body: letterRequest(action, selection, options, true).body as never })) as { total: number },
    // Counted once for each dialog: after the job has started, nothing of the selection is left to count.
    enabled: (query) => query.state.data === undefined,
    gcTime: 0,
    retry: false,
  })
  const total = counted.data?.total
  const { label, icon, danger } = LETTER_ACTIONS[action]
  return (
    <ActionDialog
      onClose={onClose}
      action={{
        id: `letters-${action}`,
        label,
        icon,
        danger,
        refused: total === undefined ? (counted.error?.message ?? 'The server is counting the dead letters.') : total === 0 ? 'No dead letter can be changed.' : null,
        title: `${label}: ${what}`,
        consequence: total === undefined ? (counted.error === null ? 'Counting the dead letters …' : '') : letterConsequence(action, total, options),
        verb: total === undefined ? label : `${label}: ${total.toLocaleString('en-US')}`,
        typed: total !== undefined && total > TYPED_FROM ? String(total) : undefined,
        request: letterRequest(action, selection, options),
        done: 'The bulk job has started.',
        after: (response) => {
          onStarted()
          navigate(`/bulk/${(response as { job_id: string }).job_id}`)
        },
      }}
    >
      <Options action={action} options={options} onChange={setOptions} />
      {counted.error !== null && <ErrorNote error={counted.error} />}
    </ActionDialog>
  )
}
