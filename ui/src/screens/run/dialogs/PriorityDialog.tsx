/* Change the priority of a waiting run. */
import { ArrowUpDown } from 'lucide-react'
import { useState } from 'react'
import type { Run } from '@/api/types'
import { asCli } from '@/format/command'
import { shortId } from '@/format/text'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Field, TextInput } from '@/parts/form/Field'

export function PriorityDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  const [text, setText] = useState(String(run.priority))
  const priority = Number(text)
  const valid = text.trim() !== '' && Number.isInteger(priority) && Math.abs(priority) <= 100
  const move = priority > run.priority ? 'earlier' : priority < run.priority ? 'later' : 'at the same place'
  return (
    <ActionDialog
      onClose={onClose}
      action={{
        id: 'priority',
        label: 'Change the priority',
        icon: ArrowUpDown,
        refused: valid ? null : 'Enter a whole number from -100 to 100.',
        title: `Priority of run ${shortId(run.run_id)}`,
        consequence: `The run keeps its lane ${run.lane} and starts ${move} among the waiting runs there. Its priority changes from ${run.priority} to ${valid ? priority : '…'}.`,
        verb: 'Change the priority',
        request: request('patch', '/api/v2/runs/{run_id}', { path: { run_id: run.run_id }, body: { priority }, cli: asCli('runs', 'priority', run.run_id, String(priority)) }),
        done: 'The priority was changed.',
      }}
    >
      <Field label="Priority" hint="-100 to 100; higher runs start earlier">
        {(ids) => <TextInput {...ids} data-autofocus type="number" min={-100} max={100} value={text} onChange={(event) => setText(event.target.value)} />}
      </Field>
    </ActionDialog>
  )
}
