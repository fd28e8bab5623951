/* One question with everything that is needed to decide. */
import { ArrowLeft, Clock, UserCheck } from 'lucide-react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { Question } from '@/api/types'
import { useSession } from '@/app/session'
import { formatCost } from '@/format/number'
import { visible } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { ActionButton } from '@/parts/action/ActionButtons'
import { CopyIconButton } from '@/parts/Copy'
import { JsonView } from '@/parts/json/JsonView'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { Time } from '@/parts/Time'
import { Target } from '@/screens/runs/runColumns'
import { argumentsOf, expiryText, keyOfQuestion, kindText, toolOf } from './kinds'
import { MakeLink } from './MakeLink'
import { QuestionForm } from './QuestionForm'
import { QuestionLinks } from './QuestionLinks'

function claimAction(question: Question, release: boolean): Action {
  return {
    id: 'claim',
    label: release ? 'Give back' : 'Claim',
    icon: UserCheck,
    title: release ? 'Give the question back' : 'Claim the question',
    consequence: release ? 'Others see again that no one is working on it.' : 'Others see for ten minutes that you are working on it. They can still answer it.',
    verb: release ? 'Give back' : 'Claim',
    request: request('post', '/api/v2/inbox/claim', { body: { run_id: question.run_id, path: question.path, release } }),
    done: release ? 'The question is given back.' : 'The question is claimed for ten minutes.',
  }
}

/** Arguments of a tool as a table: one line each, readable without knowing JSON. */
function Arguments({ value }: { value: unknown }) {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return <JsonView value={value} label="the arguments" openDepth={3} />
  return (
    <>
      <dl className="grid grid-cols-[minmax(80px,auto)_1fr]">
        {Object.entries(value).map(([name, entry]) => (
          <div key={name} className="contents">
            <dt className="border-b border-line py-1 pr-4 font-mono text-xs break-words text-soft">{visible(name)}</dt>
            <dd className="min-w-0 border-b border-line py-1 break-words whitespace-pre-wrap">{typeof entry === 'string' ? visible(entry) : <JsonView value={entry} label={name} bare />}</dd>
          </div>
        ))}
      </dl>
      <details className="mt-2 text-xs text-soft">
        <summary className="w-fit">As JSON</summary>
        <div className="mt-1"><JsonView value={value} label="the arguments" openDepth={3} /></div>
      </details>
    </>
  )
}

function Context({ question }: { question: Question }) {
  const tool = toolOf(question)
  if (question.context === null || question.context === undefined) return null
  return (
    <section aria-label="Context" className="rounded-md border border-line bg-sunken p-3">
      {tool !== null ? (
        <>
          <p className="mb-2">Tool <code className="font-mono text-xs font-medium">{visible(tool)}</code></p>
          <Arguments value={argumentsOf(question)} />
        </>
      ) : (
        <JsonView value={question.context} label="the context" openDepth={3} />
      )}
    </section>
  )
}

function RunFacts({ question }: { question: Question }) {
  const run = useApi('/api/v2/runs/{run_id}', { path: { run_id: question.run_id } }, { topics: ['runs'], runId: question.run_id })
  const cost = (run.data as { total_cost_usd?: number | null } | undefined)?.total_cost_usd
  return (
    <p className="flex flex-wrap items-center gap-x-4 gap-y-1 text-xs text-soft">
      <Link href={`/runs/${question.run_id}`} className="inline-flex min-w-0 items-center gap-1 text-accent underline"><Target target={question.target} /></Link>
      <span>Step <code className="font-mono">{visible(question.path)}</code></span>
      <span>Asked <Time at={question.opened_at} style="relative" /></span>
      {cost !== undefined && cost !== null && <span>Cost so far {formatCost(cost)}</span>}
      {question.tenant !== 'default' && <span>Tenant {question.tenant}</span>}
    </p>
  )
}

interface Outcome {
  state: string
  answer: unknown
  note: string | null
  question: Question
}

function Closed({ detail }: { detail: Outcome }) {
  const { question } = detail
  const text = detail.state === 'expired' ? 'The question has expired.' : detail.state === 'closed' ? 'The run no longer needs an answer.' : null
  return (
    <section role="status" className="flex flex-col gap-1.5 rounded-md border border-line bg-idle-soft px-3 py-2">
      {text !== null ? (
        <p className="font-medium">{text}</p>
      ) : (
        <>
          <p className="font-medium">
            Answered by {visible(question.answered_by ?? 'another person')} <Time at={question.answered_at} style="relative" />
          </p>
          <JsonView value={detail.answer} label="the answer" bare openDepth={3} />
          {detail.note !== null && <p className="break-words whitespace-pre-wrap text-soft">{visible(detail.note)}</p>}
        </>
      )}
    </section>
  )
}

export function QuestionPane({ selected, first, onAnswered, back }: { selected: { run_id: string; path: string }; first: Question | undefined; onAnswered: (question: Question) => void; back: string }) {
  const { may, me } = useSession()
  const query = useApi('/api/v2/inbox/{run_id}/{path}', { path: selected }, { topics: ['inbox', 'runs'] })
  // The list has the question already: it is shown at once and completed when the detail arrives.
  const detail: Outcome | undefined = query.data ?? (first === undefined ? undefined : { state: 'open', answer: null, note: null, question: first })
  if (detail === undefined) return <Loaded query={query}>{() => null}</Loaded>
  const { question } = detail
  const kind = kindText(question.about)
  const open = detail.state === 'open'
  const claimed = question.claimed_by !== null
  return (
    <article aria-label="Question" className="mx-auto flex max-w-[860px] flex-col gap-3 p-4">
      <div className="flex flex-wrap items-center gap-2">
        <Link href={back} aria-label="All questions" className="rounded-sm p-1 md:hidden"><ArrowLeft size={16} aria-hidden /></Link>
        <Chip tone={kind.tone} title={kind.meaning}><kind.icon size={13} aria-hidden /> {kind.word}</Chip>
        {claimed && <Chip tone="busy"><UserCheck size={13} aria-hidden /> {question.claimed_by === me.name ? 'Claimed by you' : `${visible(question.claimed_by ?? '')} works on it`}</Chip>}
        <span className="ml-auto flex items-center gap-1">
          {open && may('runs:write') && <ActionButton small action={claimAction(question, claimed && question.claimed_by === me.name)} />}
          {open && may('runs:write') && <MakeLink question={question} />}
          <CopyIconButton text={() => location.href} label="Copy the link to this question" />
        </span>
      </div>
      <h1 className="text-lg font-semibold break-words whitespace-pre-wrap">{visible(question.prompt ?? question.name)}</h1>
      <RunFacts question={question} />
      <Context question={question} />
      <p className="flex items-center gap-1.5 text-xs text-soft">
        <Clock size={13} aria-hidden />
        {question.due_at !== null && <span>Due <Time at={question.due_at} style="relative" />.</span>} {expiryText(question)}
      </p>
      {!open && <Closed detail={detail} />}
      {open && <QuestionLinks question={question} />}
      <QuestionForm key={keyOfQuestion(question)} question={question} closed={!open} onAnswered={onAnswered} />
    </article>
  )
}
