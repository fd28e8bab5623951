/* The form of a question, checked by the server. Exactly one answer is taken. */
import { MessageSquareReply } from 'lucide-react'
import { useMemo, useState } from 'react'
import type { ApiError } from '@/api/errors'
import { formatJson } from '@/api/json'
import type { Question } from '@/api/types'
import { asCli } from '@/format/command'
import { visible } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Field, TextArea } from '@/parts/form/Field'
import { draftOf, questionFields, readDraft } from '@/parts/form/schema'
import { problemsByField, SchemaForm } from '@/parts/form/SchemaForm'
import { JsonView } from '@/parts/json/JsonView'

function initialValues(question: Question): Record<string, unknown> {
  const context = question.context as { arguments?: unknown } | null
  const hasArguments = question.fields.some((field) => (field.key ?? field.name) === 'arguments')
  return hasArguments && context?.arguments !== undefined ? { arguments: formatJson(context.arguments) } : {}
}

/** What is sent: arguments only count when they are edited. */
function responseOf(values: Record<string, unknown>): Record<string, unknown> {
  const { arguments: edited, ...rest } = values
  return edited === undefined || (values.decision !== undefined && values.decision !== 'edit') ? rest : { ...rest, arguments: edited }
}

export function answerAction(question: Question, response: unknown): Action {
  return {
    id: 'answer',
    label: 'Answer',
    icon: MessageSquareReply,
    title: `Answer: ${question.name}`,
    consequence: 'The run continues with this answer. It is recorded with your name and cannot be changed. If another answer was taken first, yours is refused.',
    verb: 'Send the answer',
    request: request('post', '/api/v2/runs/{run_id}/resume', {
      path: { run_id: question.run_id },
      body: { response, step: question.path } as never,
      cli: asCli('runs', 'resume', question.run_id, '--step', question.path, '--answer', formatJson(response, 0)),
    }),
    done: 'The answer was taken. The run continues.',
  }
}

export function AnswerDialog({ question, onClose }: { question: Question; onClose: () => void }) {
  const fields = useMemo(() => questionFields(question.fields), [question.fields])
  const [draft, setDraft] = useState(() => draftOf(fields, initialValues(question)))
  const [text, setText] = useState('')
  const [error, setError] = useState<ApiError | null>(null)
  const free = fields.length === 0
  const { values, problems } = readDraft(fields, draft)
  const response = free ? text : responseOf(values)
  const incomplete = Object.keys(problems).length > 0
  const action = { ...answerAction(question, response), refused: incomplete ? 'Complete the form first.' : null }
  return (
    <ActionDialog action={action} onClose={onClose} onError={setError}>
      <p className="text-base whitespace-pre-wrap">{visible(question.prompt ?? question.name)}</p>
      {question.context !== null && question.context !== undefined && (
        <div className="rounded-md border border-line bg-sunken p-2">
          <JsonView value={question.context} label="the context" openDepth={3} bare />
        </div>
      )}
      {free ? (
        <Field label="Answer">{(ids) => <TextArea {...ids} data-autofocus value={text} onChange={(event) => setText(event.target.value)} />}</Field>
      ) : (
        <SchemaForm fields={fields} draft={draft} onChange={setDraft} problems={error === null ? {} : problemsByField(error.fields, 'response.')} autoFocus />
      )}
    </ActionDialog>
  )
}
