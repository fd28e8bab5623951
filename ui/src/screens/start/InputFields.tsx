/* The input of a run: message, fields of the schema, or JSON. */
import { Braces, ListChecks } from 'lucide-react'
import type { ApiError } from '@/api/errors'
import { visible } from '@/format/text'
import { Button } from '@/parts/Button'
import { Field, TextArea } from '@/parts/form/Field'
import { problemsByField, SchemaForm } from '@/parts/form/SchemaForm'
import { ErrorNote } from '@/parts/Loading'
import type { InputForm } from './targets'
import type { StartDraft } from './useStartDraft'

function Json({ draft }: { draft: StartDraft }) {
  return (
    <Field label="Input" hint="A JSON object" problem={draft.badJson ? 'This is not a JSON object.' : null}>
      {(ids) => <TextArea {...ids} mono rows={8} value={draft.text} onChange={(event) => draft.setText(event.target.value)} />}
    </Field>
  )
}

export function InputFields({ form, draft, error }: { form: InputForm; draft: StartDraft; error: ApiError | null }) {
  const problems = { ...draft.problems, ...problemsByField(error?.fields ?? [], 'input.') }
  return (
    <>
      {form.message !== 'none' && (
        <Field label="Message" hint={form.note || undefined} required={form.message === 'required'} problem={problems.message}>
          {(ids) => <TextArea {...ids} rows={3} value={draft.message} onChange={(event) => draft.setMessage(event.target.value)} />}
        </Field>
      )}
      {form.message === 'none' && form.note !== '' && <code className="font-mono text-xs break-words text-faint">{visible(form.note)}</code>}
      {draft.asJson ? <Json draft={draft} /> : <SchemaForm fields={draft.fields} draft={draft.draft} onChange={draft.setDraft} problems={problems} />}
      {draft.fields.length > 0 && (
        <div>
          {draft.asJson ? (
            <Button small icon={ListChecks} refused={draft.badJson ? 'This is not a JSON object.' : null} onClick={draft.showFields}>
              Edit as a form
            </Button>
          ) : (
            <Button small icon={Braces} onClick={draft.showJson}>
              Edit as JSON
            </Button>
          )}
        </div>
      )}
      {error !== null && <div className="-mx-3"><ErrorNote error={error} /></div>}
    </>
  )
}
