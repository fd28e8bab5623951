/* The messages of a conversation. Everything in them was written by others, so it is shown as text. */
import { Bot, Brain, User, Wrench } from 'lucide-react'
import { lazy, Suspense } from 'react'
import type { Run } from '@/api/types'
import { usePreference } from '@/app/preferences'
import { formatDuration } from '@/format/duration'
import { formatCost, formatCount } from '@/format/number'
import { visible } from '@/format/text'
import { cx, TONE_TEXT } from '@/parts/classes'
import { JsonView } from '@/parts/json/JsonView'
import { StatusIcon } from '@/parts/Status'
import { Time } from '@/parts/Time'
import { AnswerButton } from '@/screens/inbox/AnswerButton'
import type { AnswerItem, NoteItem, QuestionItem, ToolCallItem } from '../model/types'

const MarkdownText = lazy(() => import('@/parts/MarkdownText'))

/** Text of a model: plain, or as Markdown when the reader has chosen it. */
export function MessageText({ text }: { text: string }) {
  const [markdown, setMarkdown] = usePreference('markdown', false)
  const plain = <p className="break-words whitespace-pre-wrap">{visible(text)}</p>
  return (
    <div className="group/text relative">
      {markdown ? <Suspense fallback={plain}><MarkdownText text={text} /></Suspense> : plain}
      <button type="button" onClick={() => setMarkdown(!markdown)} className="absolute -top-1 right-0 rounded-sm bg-surface px-1 text-2xs text-faint opacity-0 group-hover/text:opacity-100 focus:opacity-100">
        {markdown ? 'Plain text' : 'Markdown'}
      </button>
    </div>
  )
}

export function UserView({ text }: { text: string }) {
  return (
    <li className="flex gap-2.5">
      <User size={16} aria-label="Message" role="img" className="mt-0.5 shrink-0 text-person" />
      <div className="min-w-0 flex-1 rounded-lg bg-person-soft px-3 py-2">
        <MessageText text={text} />
      </div>
    </li>
  )
}

function Thoughts({ text, live }: { text: string; live: boolean }) {
  return (
    <details open={live} className="text-soft">
      <summary className="flex w-fit items-center gap-1 text-xs">
        <Brain size={13} aria-hidden /> Thoughts
      </summary>
      <p className="mt-1 border-l-2 border-line pl-2 break-words whitespace-pre-wrap">{visible(text)}</p>
    </details>
  )
}

export function ToolCall({ call, live }: { call: ToolCallItem; live: boolean }) {
  const outcome = call.failed ? 'failed' : call.end !== null ? 'done' : call.start !== null || live ? 'running' : 'waiting'
  return (
    <details className="rounded-md border border-line" open={call.failed || live}>
      <summary className="flex items-center gap-2 px-2 py-1">
        <StatusIcon value={outcome} size={13} />
        <Wrench size={13} aria-hidden className="text-faint" />
        <code className="font-mono text-xs font-medium">{visible(call.name)}</code>
        <span className="ml-auto text-xs text-faint">{call.start !== null && call.end !== null ? formatDuration((call.end - call.start) / 1_000) : ''}</span>
      </summary>
      <div className="flex flex-col gap-2 border-t border-line p-2">
        {typeof call.args === 'string' ? <pre className="font-mono text-xs break-words whitespace-pre-wrap">{visible(call.args)}</pre> : <JsonView value={call.args} label={`arguments of ${call.name}`} bare />}
        {call.preview !== null && (
          <div>
            <p className="text-2xs text-faint">Result</p>
            <pre className={cx('max-h-60 overflow-auto font-mono text-xs break-words whitespace-pre-wrap', call.failed && 'text-bad')}>{visible(call.preview)}</pre>
          </div>
        )}
      </div>
    </details>
  )
}

export function AnswerView({ item }: { item: AnswerItem }) {
  const facts = [
    item.model,
    item.tokensIn + item.tokensOut > 0 ? `${formatCount(item.tokensIn)} in, ${formatCount(item.tokensOut)} out` : null,
    item.cost === null ? null : formatCost(item.cost),
  ].filter((fact) => fact !== null)
  return (
    <li className="flex gap-2.5" data-live={item.live || undefined}>
      <Bot size={16} aria-label="Model" role="img" className={cx('mt-0.5 shrink-0 text-accent', item.live && 'pulse-running')} />
      <div className="flex min-w-0 flex-1 flex-col gap-1.5">
        {item.thinking !== '' && <Thoughts text={item.thinking} live={item.live} />}
        {item.text !== '' && <MessageText text={item.text} />}
        {item.calls.map((call) => (
          <ToolCall key={call.id} call={call} live={item.live} />
        ))}
        {(facts.length > 0 || item.at !== null) && (
          <p className="flex flex-wrap gap-x-3 text-2xs text-faint">
            {item.at !== null && <Time at={new Date(item.at).toISOString()} />}
            {facts.map((fact) => (
              <span key={fact}>{fact}</span>
            ))}
          </p>
        )}
      </div>
    </li>
  )
}

export function QuestionView({ item, run }: { item: QuestionItem; run: Run }) {
  const open = run.waiting_for.find((wait) => wait.path === item.path && wait.answered_at === null)
  return (
    <li className="flex gap-2.5">
      <User size={16} aria-label="Question" role="img" className="mt-0.5 shrink-0 text-person" />
      <div className="flex min-w-0 flex-1 flex-col gap-1.5 rounded-lg border border-line bg-person-soft px-3 py-2">
        <p className="font-medium break-words whitespace-pre-wrap">{visible(item.prompt)}</p>
        {item.context !== null && <JsonView value={item.context} label="the context of the question" bare />}
        {open !== undefined ? <span><AnswerButton question={open} /></span> : <p className="text-xs text-soft">{item.answeredBy === null ? 'Closed.' : `Answered by ${item.answeredBy}.`}</p>}
      </div>
    </li>
  )
}

export function NoteView({ item }: { item: NoteItem }) {
  return (
    <li className={cx('pl-7 text-xs break-words whitespace-pre-wrap', TONE_TEXT[item.tone])}>
      {visible(item.text)}
    </li>
  )
}
