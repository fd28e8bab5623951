/* A run that has reached a cap: allow it more, or stop it, where it is shown that the run waits. */
import { useMutation } from '@tanstack/react-query'
import { CircleStop, Coins } from 'lucide-react'
import { useState } from 'react'
import { type ApiError, toApiError } from '@/api/errors'
import { queryClient } from '@/api/query'
import type { Question } from '@/api/types'
import { useConnection } from '@/live/connection'
import { perform } from '@/parts/action/action'
import { RequestCommands } from '@/parts/action/ActionDialog'
import { useChangeKey } from '@/parts/action/changeKey'
import { Button } from '@/parts/Button'
import { TextInput } from '@/parts/form/Field'
import { ErrorNote } from '@/parts/Loading'
import { notify } from '@/parts/Notices'
import { amountOf, type ReachedCap, raiseConsequence } from './budget'
import { answerRequest } from './QuestionForm'

export function BudgetForm({ question, cap, refused }: { question: Question; cap: ReachedCap; refused: string | null }) {
  const [text, setText] = useState(String(cap.limit))
  const keyOf = useChangeKey()
  const away = useConnection().away
  const amount = amountOf(text)
  const allow = answerRequest(question, { decision: 'allow', amount_usd: amount }, '')
  const stop = answerRequest(question, { decision: 'stop' }, '')
  const mutation = useMutation<unknown, ApiError, 'allow' | 'stop'>({
    mutationFn: (answer) => perform(answer === 'allow' ? allow : stop, keyOf(answer === 'allow' ? allow : stop)).catch((error: unknown) => Promise.reject(toApiError(error))),
    onSuccess: (_response, answer) => {
      notify(answer === 'allow' ? 'The cap is raised. The run continues.' : 'The step fails with cost_limit.')
      void queryClient.invalidateQueries()
    },
    onError: () => void queryClient.invalidateQueries(),
  })
  const locked = refused ?? (away !== null ? `Not connected since ${away}.` : null)
  return (
    <form
      aria-label="Raise the cap"
      className="flex flex-col gap-1"
      onSubmit={(event) => {
        event.preventDefault()
        if (locked === null && amount !== null && !mutation.isPending) mutation.mutate('allow')
      }}
    >
      <span className="flex flex-wrap items-center gap-1.5">
        <label className="flex items-center gap-1.5">
          Allow
          <TextInput aria-label="More, in US dollars" inputMode="decimal" value={text} onChange={(event) => setText(event.target.value)} aria-invalid={amount === null} disabled={locked !== null} className="tabular h-6! w-24!" />
          USD more
        </label>
        <Button small look="main" type="submit" icon={Coins} disabled={mutation.isPending} refused={locked ?? (amount === null ? 'Type an amount above zero.' : null)}>
          Raise the cap
        </Button>
        <Button small look="danger" icon={CircleStop} disabled={mutation.isPending} refused={locked} onClick={() => mutation.mutate('stop')}>
          Do not allow more
        </Button>
      </span>
      <span className="text-xs text-soft">
        {amount === null ? 'Type an amount above zero.' : raiseConsequence(cap, amount)} Without more, the step fails with cost_limit. The answer is recorded with your name.
      </span>
      {mutation.error !== null && <ErrorNote error={mutation.error} />}
      <RequestCommands request={allow} />
    </form>
  )
}
