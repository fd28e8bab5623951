/* The answer to one question. Exactly one answer is taken; the server decides which. */
import { useMutation } from '@tanstack/react-query'
import { SendHorizontal } from 'lucide-react'
import { useEffect, useMemo, useRef, useState } from 'react'
import { flushSync } from 'react-dom'
import { type ApiError, toApiError } from '@/api/errors'
import { formatJson } from '@/api/json'
import { queryClient } from '@/api/query'
import type { Question } from '@/api/types'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { useConnection } from '@/live/connection'
import { type ActionRequest, perform, request } from '@/parts/action/action'
import { RequestCommands } from '@/parts/action/ActionDialog'
import { useChangeKey } from '@/parts/action/changeKey'
import { Button } from '@/parts/Button'
import { CopyButton } from '@/parts/Copy'
import { LineDiff } from '@/parts/diff/LineDiff'
import { Field, TextInput } from '@/parts/form/Field'
import type { Draft } from '@/parts/form/schema'
import { problemsByField, SchemaForm } from '@/parts/form/SchemaForm'
import { ErrorNote } from '@/parts/Loading'
import { notify } from '@/parts/Notices'
import { fieldsFor, firstDraft, formOf, keepDraft, readAnswer } from './answerDraft'
import { Decision } from './Decision'
import { answerConsequence, argumentsOf } from './kinds'

export function answerRequest(question: Question, response: unknown, note: string): ActionRequest {
  return request('post', '/api/v2/runs/{run_id}/resume', {
    path: { run_id: question.run_id },
    body: { response: response as never, step: question.path, ...(note === '' ? {} : { note }) },
    // The command has no note.
    cli: note === '' ? asCli('runs', 'resume', question.run_id, '--step', question.path, '--answer', formatJson(response, 0)) : undefined,
  })
}

interface QuestionFormProps {
  question: Question
  /** The question cannot be answered any more; what was typed can be copied. */
  closed: boolean
  onAnswered: (question: Question) => void
}

export function QuestionForm({ question, closed, onAnswered }: QuestionFormProps) {
  const form = useMemo(() => formOf(question), [question])
  const [draft, setDraft] = useState<Draft>(() => firstDraft(question, form))
  const [note, setNote] = useState('')
  const [tried, setTried] = useState(false)
  const keyOf = useChangeKey()
  const { may, platformAdmin } = useSession()
  const away = useConnection().away
  const send = useRef<HTMLButtonElement>(null)
  const box = useRef<HTMLDivElement>(null)
  const { response, problems } = readAnswer(form, draft)
  const sent = answerRequest(question, response, note)
  const mutation = useMutation<unknown, ApiError>({
    mutationFn: () => perform(sent, keyOf(sent)).catch((error: unknown) => Promise.reject(toApiError(error))),
    onSuccess: () => {
      notify('The answer was taken. The run continues.')
      void queryClient.invalidateQueries()
      onAnswered(question)
    },
    // Another answer may have been first: the question shows which.
    onError: () => void queryClient.invalidateQueries(),
  })
  const change = (next: Draft) => {
    keepDraft(question, next)
    setDraft(next)
  }
  const decisionField = form.fields.find((field) => field.name === 'decision' && field.control === 'choice')
  const decision = typeof draft.decision === 'string' ? draft.decision : ''
  const refused =
    away !== null ? `Not connected since ${away}.` : !may('runs:write') ? 'Your role may not answer questions.' : question.answerable_by === 'platform' && !platformAdmin ? 'Only platform admins may answer this question.' : null
  const submit = () => {
    setTried(true)
    if (refused === null && !closed && Object.keys(problems).length === 0 && !mutation.isPending) mutation.mutate()
  }
  // The keys of the page choose a decision; Enter then sends it.
  useEffect(() => {
    const choose = (event: Event) => {
      const wanted = (event as CustomEvent<string>).detail
      if (wanted === 'focus') box.current?.querySelector<HTMLElement>('input, textarea, select, button')?.focus()
      if (decisionField === undefined || closed) return
      const option = decisionField.options.find((candidate) => candidate.startsWith(wanted))
      if (option === undefined) return
      // The button can have the focus once the decision is shown.
      flushSync(() => setDraft((old) => ({ ...old, decision: option })))
      const target = option === 'approve' ? send.current : (box.current?.querySelector<HTMLElement>('textarea, input[type=text]') ?? send.current)
      target?.focus()
    }
    document.addEventListener('runlane:decide', choose)
    return () => document.removeEventListener('runlane:decide', choose)
  }, [decisionField, closed])
  const shown = fieldsFor(form, decision)
  const ready = decisionField === undefined || decision !== ''
  return (
    <form
      className="flex flex-col gap-3"
      onSubmit={(event) => {
        event.preventDefault()
        submit()
      }}
    >
      <fieldset disabled={closed || mutation.isPending} className="contents">
        {decisionField !== undefined && <Decision field={decisionField} value={decision} onChange={(option) => change({ ...draft, decision: option })} problem={tried ? problems.decision : undefined} />}
        {ready && (
          <div ref={box} className="flex flex-col gap-3">
            <SchemaForm fields={shown} draft={draft} onChange={change} problems={{ ...(tried ? problems : {}), ...problemsByField(mutation.error?.fields ?? [], 'response.') }} />
            {decision === 'edit' && problems.arguments === undefined && <LineDiff label="Changes of the arguments" before={argumentsOf(question)} after={(response as Record<string, unknown>).arguments} />}
            <Field label="Note" hint="Optional. Stored with the answer, for people.">
              {(ids) => <TextInput {...ids} maxLength={500} value={note} onChange={(event) => setNote(event.target.value)} />}
            </Field>
          </div>
        )}
      </fieldset>
      {!closed && (
        <>
          {ready && <p className="text-soft">{answerConsequence(question, decision)}</p>}
          <div className="flex flex-wrap items-center gap-2">
            <Button ref={send} look="main" type="submit" icon={SendHorizontal} disabled={mutation.isPending || !ready} refused={refused}>
              Send the answer
            </Button>
            {mutation.isPending && <span role="status" className="text-soft">Sending …</span>}
          </div>
          {mutation.error !== null && mutation.error.fields.length === 0 && <div className="-mx-3"><ErrorNote error={mutation.error} /></div>}
          <RequestCommands request={sent} />
        </>
      )}
      {closed && <span><CopyButton text={() => formatJson(response)}>Copy what you typed</CopyButton></span>}
    </form>
  )
}
