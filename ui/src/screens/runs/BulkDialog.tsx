/* A bulk change: the server counts first, the dialog states the number, and above 100 it must be typed. */
import { useQuery } from '@tanstack/react-query'
import { Layers } from 'lucide-react'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { send } from '@/api/client'
import type { ApiError } from '@/api/errors'
import { useApi } from '@/api/query'
import { useLater } from '@/app/later'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Check, Field, Select, TextInput } from '@/parts/form/Field'
import { ErrorNote } from '@/parts/Loading'
import { BULK_LABELS, type BulkName, type BulkOptions, bulkRequest, changeable, consequence, type Selected, TYPED_FROM } from './bulk'

const EMPTY: BulkOptions = { priority: 0, lane: '', add: [], remove: [], latest: false }

function LaneField({ value, onChange }: { value: string; onChange: (lane: string) => void }) {
  const lanes = useApi('/api/v2/lanes')
  const names = (lanes.data?.lanes ?? []).map((lane) => [lane.name, lane.name] as [string, string])
  return <Field label="Lane">{(ids) => <Select {...ids} value={value} options={[['', 'Choose a lane'], ...names]} onChange={(event) => onChange(event.target.value)} />}</Field>
}

function TagsField({ label, value, onChange }: { label: string; value: string[]; onChange: (tags: string[]) => void }) {
  const [text, setText] = useState(value.join(' '))
  return (
    <Field label={label} hint="Separate tags with spaces">
      {(ids) => (
        <TextInput
          {...ids}
          value={text}
          onChange={(event) => {
            setText(event.target.value)
            onChange(event.target.value.split(/[\s,]+/).filter(Boolean))
          }}
        />
      )}
    </Field>
  )
}

function OptionFields({ action, options, onChange }: { action: BulkName; options: BulkOptions; onChange: (options: BulkOptions) => void }) {
  if (action === 'priority') {
    return (
      <Field label="Priority" hint="-100 to 100; higher runs start earlier">
        {(ids) => <TextInput {...ids} type="number" min={-100} max={100} value={options.priority} onChange={(event) => onChange({ ...options, priority: event.target.valueAsNumber || 0 })} />}
      </Field>
    )
  }
  if (action === 'lane') return <LaneField value={options.lane} onChange={(lane) => onChange({ ...options, lane })} />
  if (action === 'tag') {
    return (
      <>
        <TagsField label="Add" value={options.add} onChange={(add) => onChange({ ...options, add })} />
        <TagsField label="Remove" value={options.remove} onChange={(remove) => onChange({ ...options, remove })} />
      </>
    )
  }
  if (action === 'retry') return <Check label="Continue on the current versions of the definitions, where the recorded steps fit" checked={options.latest} onChange={(event) => onChange({ ...options, latest: event.target.checked })} />
  return null
}

function ready(action: BulkName, options: BulkOptions): boolean {
  if (action === 'lane') return options.lane !== ''
  if (action === 'tag') return options.add.length + options.remove.length > 0
  return true
}

interface BulkDialogProps {
  action: BulkName
  selected: Selected
  /** What is selected, in words. */
  subject?: string
  onClose: () => void
  onStarted?: () => void
}

export function BulkDialog({ action, selected, subject, onClose, onStarted }: BulkDialogProps) {
  const [options, setOptions] = useState(EMPTY)
  const [, navigate] = useLocation()
  const complete = ready(action, options)
  const asked = useLater(options, 300)
  const counted = useQuery<{ total: number }, ApiError>({
    queryKey: ['bulk', 'preview', action, selected, complete, asked],
    queryFn: async () => (await send('post', '/api/v2/bulk', { body: bulkRequest(action, selected, asked, true).body as never })) as { total: number },
    // Counted once for each dialog: after the job has started, nothing of the selection is left to count.
    enabled: (query) => complete && ready(action, asked) && query.state.data === undefined,
    gcTime: 0,
    staleTime: 0,
    retry: false,
  })
  const total = counted.data === undefined ? undefined : (changeable(action, selected) ?? counted.data.total)
  const size = 'ids' in selected ? selected.ids.length : null
  return (
    <ActionDialog
      onClose={onClose}
      action={{
        id: `bulk-${action}`,
        label: BULK_LABELS[action],
        icon: Layers,
        danger: action === 'cancel',
        refused: !complete ? 'Complete the form first.' : total === undefined ? (counted.error?.message ?? 'The server is counting the runs.') : total === 0 ? 'No run can be changed.' : null,
        title: `${BULK_LABELS[action]}: ${subject ?? (size === null ? 'all runs that match the filter' : `${size} selected`)}`,
        consequence: total === undefined ? (complete && counted.error === null ? 'Counting the runs …' : '') : consequence(action, total, size),
        verb: total === undefined ? BULK_LABELS[action] : `${BULK_LABELS[action]}: ${total} ${total === 1 ? 'run' : 'runs'}`,
        typed: total !== undefined && total > TYPED_FROM ? String(total) : undefined,
        request: bulkRequest(action, selected, options),
        done: 'The bulk job has started.',
        after: (response) => {
          onStarted?.()
          navigate(`/bulk/${(response as { job_id: string }).job_id}`)
        },
      }}
    >
      <OptionFields action={action} options={options} onChange={setOptions} />
      {counted.error !== null && <ErrorNote error={counted.error} />}
    </ActionDialog>
  )
}
