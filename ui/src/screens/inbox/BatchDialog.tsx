/* One answer for several questions of one kind and one tool. Everything that is answered is listed in full. */
import { ListChecks } from 'lucide-react'
import { useMemo, useState } from 'react'
import type { components } from '@/api/schema'
import type { Question } from '@/api/types'
import { plural } from '@/format/number'
import { visible } from '@/format/text'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { request } from '@/parts/action/action'
import { SchemaForm } from '@/parts/form/SchemaForm'
import type { Draft } from '@/parts/form/schema'
import { JsonView } from '@/parts/json/JsonView'
import { notify } from '@/parts/Notices'
import { fieldsFor, formOf, readAnswer } from './answerDraft'
import { Decision } from './Decision'
import { answerConsequence, argumentsOf, keyOfQuestion, toolOf } from './kinds'

type Given = components['schemas']['AnswersGiven']

/** Why these questions cannot have one answer; null if they can. */
export function batchRefused(questions: Question[]): string | null {
  const first = questions[0]
  if (first === undefined) return 'Select questions first.'
  if (questions.length > 100) return 'At most 100 questions can be answered at once.'
  const shape = (question: Question) => JSON.stringify([question.about, toolOf(question), question.fields, question.about === 'step' ? question.target + question.step_id : ''])
  return questions.every((question) => shape(question) === shape(first)) ? null : 'Only questions of one kind and one tool, or of one step, can have one answer.'
}

export function BatchDialog({ questions, onClose, onDone }: { questions: Question[]; onClose: () => void; onDone: () => void }) {
  const first = questions[0]!
  const form = useMemo(() => {
    const all = formOf(first)
    // Edited arguments belong to one call.
    return { ...all, fields: all.fields.map((field) => (field.name === 'decision' ? { ...field, options: field.options.filter((option) => option !== 'edit') } : field)) }
  }, [first])
  const [draft, setDraft] = useState<Draft>({})
  const { response, problems } = readAnswer(form, draft)
  const decision = typeof draft.decision === 'string' ? draft.decision : ''
  const decisionField = form.fields.find((field) => field.name === 'decision')
  return (
    <ActionDialog
      wide
      onClose={onClose}
      action={{
        id: 'answer-many',
        label: 'Answer',
        icon: ListChecks,
        refused: Object.keys(problems).length > 0 ? 'Complete the form first.' : null,
        title: `Answer ${plural(questions.length, 'question')}`,
        consequence: `Each of the ${questions.length} runs gets this answer. ${answerConsequence(first, decision).replace('the arguments above', 'its arguments in the list')} A question that was answered meanwhile is left as it is and reported.`,
        verb: `Answer ${plural(questions.length, 'question')}`,
        request: request('post', '/api/v2/inbox/answer', { body: { answers: questions.map((question) => ({ run_id: question.run_id, step: question.path, response: response as never })) } }),
        done: (result) => {
          const given = result as Given
          for (const outcome of given.outcomes) if (!outcome.answered) notify(`${outcome.run_id}: ${outcome.message ?? outcome.code ?? 'refused'}`, { bad: true })
          return `${plural(given.answered, 'question')} answered${given.refused === 0 ? '' : `, ${given.refused} refused`}.`
        },
        after: onDone,
      }}
    >
      <ol aria-label="Questions that get this answer" className="flex max-h-[40vh] flex-col gap-2 overflow-y-auto" tabIndex={0}>
        {questions.map((question) => (
          <li key={keyOfQuestion(question)} className="rounded-md border border-line bg-sunken px-3 py-2">
            <p className="font-medium break-words whitespace-pre-wrap">{visible(question.prompt ?? question.name)}</p>
            <p className="font-mono text-2xs text-faint">{question.run_id} {visible(question.path)}</p>
            <JsonView value={argumentsOf(question) ?? question.context} label="the context" bare openDepth={4} />
          </li>
        ))}
      </ol>
      {decisionField !== undefined && <Decision field={decisionField} value={decision} onChange={(option) => setDraft({ ...draft, decision: option })} />}
      {(decisionField === undefined || decision !== '') && <SchemaForm fields={fieldsFor(form, decision)} draft={draft} onChange={setDraft} />}
    </ActionDialog>
  )
}
