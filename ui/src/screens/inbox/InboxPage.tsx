/* Everything that waits for a person: the list, the open question, and keys to work through them. */
import { Inbox as InboxIcon, ListChecks } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import { Link } from 'wouter'
import type { Question } from '@/api/types'
import { useTitle } from '@/app/inboxCount'
import { useMedia } from '@/app/media'
import { useSession } from '@/app/session'
import { oneLine, shortId } from '@/format/text'
import { useHold } from '@/live/refresh'
import { Button } from '@/parts/Button'
import { cx, TONE_TEXT } from '@/parts/classes'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { PagesFooter } from '@/parts/pages'
import { type Selection, useSelection } from '@/parts/table/selection'
import { Time } from '@/parts/Time'
import { BatchDialog, batchRefused } from './BatchDialog'
import { InboxFilters } from './InboxFilters'
import { keyOfQuestion, kindText, toolOf } from './kinds'
import { QuestionPane } from './QuestionPane'
import { neighbour, nextAfter, NO_FILTERS, openQuestion, useInbox } from './useInbox'

function QuestionRow({ question, href, active, selection }: { question: Question; href: string; active: boolean; selection: Selection | null }) {
  const kind = kindText(question.about)
  const id = keyOfQuestion(question)
  const ref = useRef<HTMLLIElement>(null)
  useEffect(() => {
    if (active) ref.current?.scrollIntoView({ block: 'nearest' })
  }, [active])
  return (
    <li ref={ref} className={cx('relative flex items-start gap-2 border-b border-line px-3 py-2', active ? 'bg-selected' : 'hover:bg-hover')}>
      {selection !== null && <input type="checkbox" aria-label={`Select the question of ${question.run_id}`} checked={selection.has(id)} onChange={() => selection.toggle(id, false)} className="relative z-10 mt-0.5 size-4 accent-accent" />}
      <kind.icon size={15} role="img" aria-label={kind.word} className={cx('mt-0.5 shrink-0', TONE_TEXT[kind.tone])} />
      <span className="min-w-0 flex-1">
        <Link href={href} aria-current={active ? 'true' : undefined} className="line-clamp-2 font-medium break-words after:absolute after:inset-0">
          {oneLine(question.prompt ?? question.name, 160)}
        </Link>
        <span className="flex gap-2 text-xs text-faint">
          <span className="min-w-0 truncate" title={question.target}>{toolOf(question) ?? question.target.replace(/^\w+:/, '')}</span>
          <code className="font-mono">{shortId(question.run_id)}</code>
          {question.claimed_by !== null && <span className="truncate text-busy">{question.claimed_by} works on it</span>}
        </span>
      </span>
      <span className="shrink-0 text-right text-xs text-soft">
        <Time at={question.opened_at} style="relative" />
        {question.due_at !== null && <span className="block text-wait">due <Time at={question.due_at} style="relative" /></span>}
      </span>
    </li>
  )
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName) || (target instanceof HTMLInputElement && !/^(checkbox|radio)$/.test(target.type)))
}

const DECISIONS: Record<string, string> = { a: 'approve', d: 'deny', e: 'edit', Enter: 'focus' }

export default function InboxPage() {
  useTitle('Inbox')
  const { address, query, questions, selected, filtered } = useInbox()
  const { may } = useSession()
  const narrow = useMedia('(max-width: 819px)')
  const selection = useSelection()
  const [batch, setBatch] = useState(false)
  const chosen = questions.filter((question) => selection.has(keyOfQuestion(question)))
  useHold(chosen.length > 0)
  const first = selected === null ? undefined : questions.find((question) => keyOfQuestion(question) === keyOfQuestion(selected))
  const listen = useRef<(event: KeyboardEvent) => void>(() => undefined)
  listen.current = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector('dialog[open], [popover]:popover-open') !== null) return
    const by = { j: 1, k: -1 }[event.key]
    if (by !== undefined) {
      event.preventDefault()
      openQuestion(address, neighbour(questions, selected, by))
    } else if (event.key === 'x' && first !== undefined) selection.toggle(keyOfQuestion(first), false)
    else if (DECISIONS[event.key] !== undefined && selected !== null) {
      if (event.key === 'Enter' && event.target !== document.body) return
      event.preventDefault()
      document.dispatchEvent(new CustomEvent('runlane:decide', { detail: DECISIONS[event.key] }))
    }
  }
  useEffect(() => {
    const handler = (event: KeyboardEvent) => listen.current(event)
    document.addEventListener('keydown', handler)
    return () => document.removeEventListener('keydown', handler)
  }, [])
  // On a wide screen the oldest question is open, so that the first key already decides.
  const oldest = questions[0]
  useEffect(() => {
    if (!narrow && selected === null && oldest !== undefined) openQuestion(address, oldest)
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [narrow, selected === null, oldest])
  const onAnswered = (question: Question) => {
    const next = nextAfter(questions, question)
    if (next !== undefined) openQuestion(address, next)
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur()
  }
  return (
    <div className="grid h-full min-h-0 md:grid-cols-[minmax(280px,400px)_1fr]">
      {(!narrow || selected === null) && (
        <section aria-label="Questions" className="flex min-h-0 flex-col border-r border-line bg-surface">
          <InboxFilters address={address} />
          {chosen.length > 0 && (
            <div className="flex flex-wrap items-center gap-2 border-b border-line bg-accent-soft px-3 py-1.5">
              <span className="font-medium">{chosen.length} selected</span>
              <Button small icon={ListChecks} refused={batchRefused(chosen)} onClick={() => setBatch(true)}>Answer them</Button>
              <Button small look="quiet" onClick={selection.clear}>Clear</Button>
              {batchRefused(chosen) !== null && <span className="text-xs text-soft">{batchRefused(chosen)}</span>}
            </div>
          )}
          <div className="min-h-0 flex-1 overflow-y-auto">
            <Loaded query={query}>
              {() =>
                questions.length === 0 ? (
                  <Empty icon={InboxIcon} title={filtered ? 'No question matches' : 'No question waits for you'} actions={filtered ? <Button onClick={() => address.set(NO_FILTERS)}>Clear the filters</Button> : undefined}>
                    {filtered ? 'Open questions may exist that these filters leave out.' : 'Human steps, tools with requires_approval and reached budgets ask here. A new question appears without a reload.'}
                  </Empty>
                ) : (
                  <>
                    <ul aria-label="Open questions">
                      {questions.map((question) => (
                        <QuestionRow key={keyOfQuestion(question)} question={question} href={address.link({ run: question.run_id, path: question.path })} active={question === first} selection={may('runs:write') ? selection : null} />
                      ))}
                    </ul>
                    <p className="flex flex-wrap items-center gap-2 px-3 py-2 text-xs text-soft">
                      <PagesFooter query={query} count={questions.length} noun="question" />
                    </p>
                  </>
                )
              }
            </Loaded>
          </div>
          <p className="border-t border-line px-3 py-1.5 text-2xs text-faint max-md:hidden">j, k move · a, d, e decide · Enter sends · x selects</p>
        </section>
      )}
      {(!narrow || selected !== null) && (
        <div className="min-h-0 min-w-0 overflow-y-auto">
          {selected === null ? null : <QuestionPane key={keyOfQuestion(selected)} selected={selected} first={first} onAnswered={onAnswered} back={address.link({ run: null, path: null })} />}
        </div>
      )}
      {batch && <BatchDialog questions={chosen} onClose={() => setBatch(false)} onDone={selection.clear} />}
    </div>
  )
}
