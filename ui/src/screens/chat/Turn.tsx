/* One turn: what the user wrote, what the agent did and answered. The open turn is followed by number. */
import { ExternalLink } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { RunSummary } from '@/api/types'
import { useSession } from '@/app/session'
import { formatCost } from '@/format/number'
import { visible } from '@/format/text'
import { ActionButton } from '@/parts/action/ActionButtons'
import { JsonView } from '@/parts/json/JsonView'
import { Status } from '@/parts/Status'
import { Time } from '@/parts/Time'
import { AnswerView, MessageText, NoteView, QuestionView, UserView } from '@/screens/run/conversation/ItemViews'
import { liveItem } from '@/screens/run/conversation/ConversationTab'
import { useRunModel } from '@/screens/run/model/useRunModel'
import { retryAction } from '@/screens/run/runActions'
import { isEnded } from '@/text/status'
import type { TurnMessages } from './turns'

/** What an agent has done in a turn, from the events of its run. */
function Steps({ runId, status, scroll }: { runId: string; status: string; scroll: boolean }) {
  const run = useApi('/api/v2/runs/{run_id}', { path: { run_id: runId } }, { topics: ['runs', 'inbox'], runId })
  const store = useRunModel(runId, run.data?.status ?? status, 0)
  const items = [...store.model.conversations.values()].flatMap((conversation) => conversation.items)
  const live = [...store.model.live.values()]
  const end = useRef<HTMLLIElement>(null)
  const size = items.length + live.reduce((sum, answer) => sum + answer.text.length, 0)
  useEffect(() => {
    if (scroll && size > 0) end.current?.scrollIntoView({ block: 'nearest' })
  }, [scroll, size])
  return (
    <ol aria-label="Steps of the turn" className="flex flex-col gap-3">
      {items.map((item) =>
        item.kind === 'answer' ? <AnswerView key={item.key} item={item} /> : item.kind === 'note' ? <NoteView key={item.key} item={item} /> : run.data !== undefined && <QuestionView key={item.key} item={item} run={run.data} />,
      )}
      {live.map((answer) => (
        <AnswerView key={answer.answer} item={liveItem(answer)} />
      ))}
      {!store.connected && <li role="status" className="text-xs text-wait">Not connected to the turn; it continues on the server. The page catches up by number.</li>}
      <li ref={end} aria-hidden />
    </ol>
  )
}

function Answer({ content }: { content: unknown }) {
  return typeof content === 'string' ? <MessageText text={content} /> : <JsonView value={content} label="the answer" />
}

function Failure({ turn, run }: { turn: TurnMessages; run: RunSummary | undefined }) {
  const { may } = useSession()
  const error = turn.answer?.error ?? turn.user?.error
  return (
    <div role="alert" className="flex flex-col gap-1 rounded-md border border-bad bg-bad-soft px-3 py-2">
      <p className="font-medium break-words text-bad">The turn failed{typeof error?.message === 'string' ? `: ${visible(error.message)}` : '.'}</p>
      {run !== undefined && may('runs:write') && run.status === 'failed' && <span><ActionButton small action={{ ...retryAction(run), label: 'Retry the turn' }} /></span>}
    </div>
  )
}

export function Turn({ turn, run, live }: { turn: TurnMessages; run: RunSummary | undefined; live: boolean }) {
  const [details, setDetails] = useState(false)
  const status = run?.status ?? (turn.answer ?? turn.user)?.status ?? 'queued'
  const ended = isEnded(status)
  const text = turn.user?.content
  return (
    <li className="flex flex-col gap-3" data-turn={turn.turn}>
      <ol className="contents">{turn.user !== null && <UserView text={typeof text === 'string' ? text : JSON.stringify(text)} />}</ol>
      {live || details ? (
        <Steps runId={turn.runId} status={status} scroll={live} />
      ) : (
        turn.answer !== null && turn.answer.error === null && turn.answer.content !== null && <div className="pl-7"><Answer content={turn.answer.content} /></div>
      )}
      {status === 'failed' && <div className="pl-7"><Failure turn={turn} run={run} /></div>}
      <p className="flex flex-wrap items-center gap-x-3 gap-y-1 pl-7 text-2xs text-faint">
        {(!ended || status === 'cancelled') && <Status value={status} />}
        {turn.user !== null && <Time at={turn.user.at} />}
        {run?.total_cost_usd !== undefined && run.total_cost_usd !== null && <span title="Cost of the turn">{formatCost(run.total_cost_usd)}</span>}
        {ended && (
          <button type="button" aria-expanded={details} onClick={() => setDetails(!details)} className="rounded-sm underline">
            {details ? 'Hide the steps' : 'Show the steps'}
          </button>
        )}
        <Link href={`/runs/${turn.runId}`} className="inline-flex items-center gap-1 underline">
          <ExternalLink size={11} aria-hidden /> Run of turn {turn.turn}
        </Link>
      </p>
    </li>
  )
}
