/* A form made of a schema. The server checks the values again; its messages appear at their fields. */
import type { FieldProblem } from '@/api/errors'
import { Check, Field, Select, TextArea, TextInput } from './Field'
import type { Draft, FormField } from './schema'

interface SchemaFormProps {
  fields: FormField[]
  draft: Draft
  onChange: (draft: Draft) => void
  problems?: Record<string, string>
  autoFocus?: boolean
}

/** The messages of a 422 by the field they concern; `input.title` belongs to `title`. */
export function problemsByField(problems: FieldProblem[], prefix = ''): Record<string, string> {
  const found: Record<string, string> = {}
  for (const { field, message } of problems) {
    const name = field.startsWith(prefix) ? field.slice(prefix.length) : field
    found[name.split(/[.[]/)[0] ?? name] = message
  }
  return found
}

function Choices({ field, value, onChange }: { field: FormField; value: string[]; onChange: (value: string[]) => void }) {
  return (
    <fieldset className="flex flex-col gap-0.5">
      <legend className="mb-1 font-medium">{field.label}</legend>
      {field.options.map((option) => (
        <Check
          key={option}
          label={option}
          checked={value.includes(option)}
          onChange={(event) => onChange(event.target.checked ? [...value, option] : value.filter((other) => other !== option))}
        />
      ))}
    </fieldset>
  )
}

function Input({ field, text, onChange, ids, focus }: { field: FormField; text: string; onChange: (text: string) => void; ids: object; focus: boolean }) {
  const shared = { ...ids, value: text, required: field.required, 'data-autofocus': focus || undefined }
  if (field.control === 'choice') {
    const options = field.options.map((option) => [option, option] as [string, string])
    return <Select {...shared} options={field.required && text !== '' ? options : [['', '–'], ...options]} onChange={(event) => onChange(event.target.value)} />
  }
  if (field.control === 'long' || field.control === 'json') {
    return <TextArea {...shared} mono={field.control === 'json'} rows={field.control === 'json' ? 3 : 5} onChange={(event) => onChange(event.target.value)} />
  }
  const numeric = field.control === 'number' || field.control === 'integer'
  return (
    <TextInput
      {...shared}
      type={field.control === 'date' ? 'date' : field.control === 'email' ? 'email' : 'text'}
      inputMode={numeric ? (field.control === 'integer' ? 'numeric' : 'decimal') : undefined}
      onChange={(event) => onChange(event.target.value)}
    />
  )
}

export function SchemaForm({ fields, draft, onChange, problems = {}, autoFocus = false }: SchemaFormProps) {
  const set = (name: string, value: string | boolean | string[]) => onChange({ ...draft, [name]: value })
  return (
    <div className="flex flex-col gap-3">
      {fields.map((field, index) => {
        const value = draft[field.name]
        if (field.control === 'boolean') {
          return <Check key={field.name} label={field.label} checked={value === true} onChange={(event) => set(field.name, event.target.checked)} />
        }
        if (field.control === 'choices') {
          return <Choices key={field.name} field={field} value={Array.isArray(value) ? value : []} onChange={(next) => set(field.name, next)} />
        }
        return (
          <Field key={field.name} label={field.label} hint={field.hint ?? (field.control === 'json' ? 'JSON' : undefined)} problem={problems[field.name]} required={field.required}>
            {(ids) => <Input field={field} ids={ids} focus={autoFocus && index === 0} text={typeof value === 'string' ? value : ''} onChange={(text) => set(field.name, text)} />}
          </Field>
        )
      })}
    </div>
  )
}
