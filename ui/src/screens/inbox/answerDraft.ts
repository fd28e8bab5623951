/* What was typed into each question. It stays when another question is opened, answered elsewhere or expired. */
import { formatJson } from '@/api/json'
import type { Question } from '@/api/types'
import { type Draft, draftOf, type FormField, questionFields, readDraft } from '@/parts/form/schema'
import { argumentsOf, keyOfQuestion } from './kinds'

const typed = new Map<string, Draft>()
const TEXT_FIELD: FormField = { name: 'answer', label: 'Answer', control: 'long', required: true, nullable: false, options: [], initial: undefined }

export interface AnswerForm {
  fields: FormField[]
  /** A question without fields takes one text. */
  free: boolean
}

export function formOf(question: Question): AnswerForm {
  const fields = questionFields(question.fields)
  return fields.length === 0 ? { fields: [TEXT_FIELD], free: true } : { fields: fields.map((field) => (field.name === 'arguments' ? { ...field, control: 'json' } : field)), free: false }
}

export function firstDraft(question: Question, form: AnswerForm): Draft {
  const known = typed.get(keyOfQuestion(question))
  if (known !== undefined) return known
  const given = argumentsOf(question)
  const draft = draftOf(form.fields)
  if (given !== undefined && 'arguments' in draft) draft.arguments = formatJson(given)
  return draft
}

export function keepDraft(question: Question, draft: Draft): void {
  typed.set(keyOfQuestion(question), draft)
  if (typed.size > 200) typed.delete(typed.keys().next().value!)
}

/** The fields that count for a decision: arguments for `edit`, a reason for anything but an approval. */
export function fieldsFor(form: AnswerForm, decision: unknown): FormField[] {
  const decides = form.fields.some((field) => field.name === 'decision')
  return form.fields.filter((field) => {
    if (!decides || field.name === 'decision') return field.name !== 'decision'
    if (field.name === 'arguments') return decision === 'edit'
    return field.name === 'reason' ? decision !== 'approve' && decision !== '' : true
  })
}

export interface ReadAnswer {
  response: Record<string, unknown> | string
  problems: Record<string, string>
}

export function readAnswer(form: AnswerForm, draft: Draft): ReadAnswer {
  const decision = form.fields.filter((field) => field.name === 'decision')
  const { values, problems } = readDraft([...decision, ...fieldsFor(form, draft.decision)], draft)
  return { response: form.free ? String(values.answer ?? '') : values, problems }
}
