/* Change the tags of a run. */
import { Tags } from 'lucide-react'
import { useState } from 'react'
import type { Run } from '@/api/types'
import { asCli } from '@/format/command'
import { shortId } from '@/format/text'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Field, TextInput } from '@/parts/form/Field'

export function TagsDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  const [text, setText] = useState(run.tags.join(' '))
  const tags = [...new Set(text.split(/[\s,]+/).filter(Boolean))]
  const added = tags.filter((tag) => !run.tags.includes(tag))
  const removed = run.tags.filter((tag) => !tags.includes(tag))
  const cli = asCli('runs', 'tag', run.run_id, ...added.flatMap((tag) => ['--add', tag]), ...removed.flatMap((tag) => ['--remove', tag]))
  return (
    <ActionDialog
      onClose={onClose}
      action={{
        id: 'tags',
        label: 'Change tags',
        icon: Tags,
        refused: added.length + removed.length === 0 ? 'Nothing is changed.' : null,
        title: `Tags of run ${shortId(run.run_id)}`,
        consequence: [added.length > 0 && `Added: ${added.join(', ')}.`, removed.length > 0 && `Removed: ${removed.join(', ')}.`, 'Lists find the run by its tags. Its execution does not change.'].filter(Boolean).join(' '),
        verb: 'Change the tags',
        request: request('patch', '/api/v2/runs/{run_id}/tags', { path: { run_id: run.run_id }, body: { add: added, remove: removed }, cli }),
        done: 'The tags were changed.',
      }}
    >
      <Field label="Tags" hint="Separate tags with spaces; up to 20">
        {(ids) => <TextInput {...ids} data-autofocus value={text} onChange={(event) => setText(event.target.value)} />}
      </Field>
    </ActionDialog>
  )
}
