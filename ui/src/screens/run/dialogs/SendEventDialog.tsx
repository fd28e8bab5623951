/* Send an event to a run. */
import { Radio } from 'lucide-react'
import { useState } from 'react'
import { formatJson, parseJson } from '@/api/json'
import type { Run } from '@/api/types'
import { asCli } from '@/format/command'
import { shortId } from '@/format/text'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Field, TextArea, TextInput } from '@/parts/form/Field'

function parse(text: string): { value: unknown; problem: string | null } {
  if (text.trim() === '') return { value: null, problem: null }
  try {
    return { value: parseJson(text), problem: null }
  } catch {
    return { value: null, problem: 'This is not valid JSON.' }
  }
}

export function SendEventDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  const waiting = run.waiting_for.filter((wait) => wait.kind === 'event')
  const [name, setName] = useState(waiting[0]?.name ?? '')
  const [text, setText] = useState('')
  const { value, problem } = parse(text)
  const step = waiting.find((wait) => wait.name === name)
  return (
    <ActionDialog
      onClose={onClose}
      action={{
        id: 'send-event',
        label: 'Send an event',
        icon: Radio,
        refused: name === '' ? 'Enter the name of the event.' : problem,
        title: `Send an event to run ${shortId(run.run_id)}`,
        consequence:
          step === undefined
            ? `No step waits for “${name}” now. The event is stored, and the first step that waits for it gets it.`
            : `Step ${step.step_id} gets the data as its output, and the run continues.`,
        verb: 'Send the event',
        request: request('post', '/api/v2/runs/{run_id}/events/{name}', {
          path: { run_id: run.run_id, name: name || 'NAME' },
          body: { data: value },
          cli: asCli('runs', 'send', run.run_id, name || 'NAME', ...(value === null ? [] : ['--data', formatJson(value, 0)])),
        }),
        done: 'The event was sent.',
      }}
    >
      <Field label="Event" hint={waiting.length > 0 ? `The run waits for: ${waiting.map((wait) => wait.name).join(', ')}` : undefined}>
        {(ids) => <TextInput {...ids} data-autofocus value={name} onChange={(event) => setName(event.target.value.trim())} />}
      </Field>
      <Field label="Data" hint="JSON; null if empty" problem={problem}>
        {(ids) => <TextArea {...ids} mono value={text} onChange={(event) => setText(event.target.value)} />}
      </Field>
    </ActionDialog>
  )
}
