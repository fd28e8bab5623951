/* A change with a form: a button that opens the dialog, and fields made of a small description. */
import type { LucideIcon } from 'lucide-react'
import { type ReactNode, useState } from 'react'
import type { ApiError } from '@/api/errors'
import { Button, type Look } from '../Button'
import { type Draft, draftOf, type FormField, readDraft } from '../form/schema'
import { problemsByField, SchemaForm } from '../form/SchemaForm'
import type { Action } from './action'
import { ActionDialog } from './ActionDialog'

/** A field with the defaults of a short text. */
export function field(name: string, label: string, given: Partial<FormField> = {}): FormField {
  return { name, label, control: 'text', required: false, nullable: true, options: [], initial: undefined, ...given }
}

export type FormValues = Record<string, unknown>

interface FormActionDialogProps {
  fields: FormField[]
  initial?: FormValues
  /** The action for what is typed. */
  build: (values: FormValues) => Action
  onClose: () => void
  wide?: boolean
  children?: (values: FormValues, complete: boolean) => ReactNode
}

export function FormActionDialog({ fields, initial = {}, build, onClose, wide, children }: FormActionDialogProps) {
  const [draft, setDraft] = useState<Draft>(() => draftOf(fields, initial))
  const [error, setError] = useState<ApiError | null>(null)
  const { values, problems } = readDraft(fields, draft)
  const complete = Object.keys(problems).length === 0
  const action = build(values)
  // Only what is wrong is named before the form is sent; what is empty is not.
  const shown = Object.fromEntries(Object.entries(problems).filter(([name]) => typeof draft[name] === 'string' && draft[name] !== ''))
  return (
    <ActionDialog wide={wide} action={{ ...action, refused: complete ? action.refused : 'Complete the form first.' }} onClose={onClose} onError={setError}>
      <SchemaForm fields={fields} draft={draft} onChange={setDraft} problems={{ ...shown, ...problemsByField(error?.fields ?? []) }} autoFocus />
      {children?.(values, complete)}
    </ActionDialog>
  )
}

interface FormActionProps extends Omit<FormActionDialogProps, 'onClose'> {
  label: string
  icon?: LucideIcon
  look?: Look
  small?: boolean
  refused?: string | null
}

export function FormAction({ label, icon, look, small, refused, ...dialog }: FormActionProps) {
  const [open, setOpen] = useState(false)
  return (
    <>
      <Button icon={icon} look={look} small={small} refused={refused} onClick={() => setOpen(true)}>
        {label}
      </Button>
      {open && <FormActionDialog {...dialog} onClose={() => setOpen(false)} />}
    </>
  )
}
