/* Why a run does not run, in one sentence with links. The server names the reason; the page never guesses one. */
import { CirclePause } from 'lucide-react'
import type { ReactNode } from 'react'
import { Link } from 'wouter'
import type { Question, Run } from '@/api/types'
import { oneLine, shortId, visible } from '@/format/text'
import { Time } from '@/parts/Time'
import { AnswerButton } from '@/screens/inbox/AnswerButton'

function RunLink({ id }: { id: string }) {
  return (
    <Link href={`/runs/${id}`} className="font-mono text-xs text-accent underline">
      {shortId(id)}
    </Link>
  )
}

/** The sentence of the server, with its runs as links. */
function Reason({ message, runs, lane }: { message: string; runs: string[]; lane: unknown }) {
  const sentence = `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? '' : '.'}`
  const others = runs.filter((id) => !message.includes(id))
  return (
    <span>
      {sentence.split(/(run_[0-9a-f]{32})/).map((part, index) => (part.startsWith('run_') ? <RunLink key={part} id={part} /> : <span key={index}>{visible(part)}</span>))}{' '}
      {others.map((id) => (
        <RunLink key={id} id={id} />
      ))}{' '}
      {typeof lane === 'string' && (
        <Link href={`/lanes/${encodeURIComponent(lane)}`} className="text-accent underline">
          Lane {lane}
        </Link>
      )}
    </span>
  )
}

function Wait({ wait }: { wait: Question }) {
  if (wait.kind === 'human') {
    return (
      <span className="flex flex-wrap items-center gap-2">
        <span>
          It asks in <b className="font-medium">{wait.step_id}</b>: “{oneLine(wait.prompt ?? wait.name, 160)}”
          {wait.due_at !== null && (
            <>
              , until <Time at={wait.due_at} />
            </>
          )}
          .
        </span>
        {wait.answered_at === null ? <AnswerButton question={wait} /> : <span className="text-soft">Answered by {wait.answered_by}; a worker continues it.</span>}
      </span>
    )
  }
  if (wait.kind === 'event') return <span>Step {wait.step_id} waits for the event “{wait.name}”{wait.due_at === null ? '' : <>, until <Time at={wait.due_at} /></>}.</span>
  if (wait.kind === 'time') return <span>Step {wait.step_id} continues at <Time at={wait.due_at} style="exact" /> (<Time at={wait.due_at} style="relative" />).</span>
  return null
}

function reasonOf(run: Run): ReactNode {
  if (run.waiting_reason !== null) return <Reason message={run.waiting_reason.message} runs={run.waiting_reason.runs} lane={run.waiting_reason.refs.lane} />
  if (run.status === 'awaiting_approval') return 'It is held until a person approves the start.'
  if (run.status === 'scheduled') return <span>It is due at <Time at={run.due_at} style="exact" /> (<Time at={run.due_at} style="relative" />).</span>
  if (run.status === 'blocked' && run.blocked_by !== null) return <span>It waits for its ordering key “{run.ordering_key}”, which <RunLink id={run.blocked_by} /> holds.</span>
  if (run.status === 'queued') return <span>It is ready and waits for a free slot in the lane <Link href={`/lanes/${encodeURIComponent(run.lane)}`} className="text-accent underline">{run.lane}</Link>.</span>
  return null
}

export function WhyItWaits({ run }: { run: Run }) {
  const waits = run.waiting_for.filter((wait) => wait.kind !== 'sent')
  const reason = waits.length === 0 ? reasonOf(run) : null
  if (reason === null && waits.length === 0) return null
  return (
    <div data-why className="flex items-start gap-2 rounded-md border border-line bg-person-soft px-3 py-1.5">
      <CirclePause size={15} aria-hidden className="mt-0.5 shrink-0 text-person" />
      <div className="flex min-w-0 flex-col gap-1">
        {waits.length > 0 ? waits.map((wait) => <Wait key={wait.path} wait={wait} />) : reason}
      </div>
    </div>
  )
}
