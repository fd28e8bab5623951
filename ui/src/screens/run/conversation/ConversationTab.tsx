/* What models, tools and people said, step by step, with live text while it is written. */
import { useEffect, useMemo } from 'react'
import type { Run } from '@/api/types'
import { cx } from '@/parts/classes'
import { Empty } from '@/parts/Empty'
import { formatCost, formatShort } from '@/format/number'
import type { RunStore } from '../model/store'
import type { AnswerItem, Conversation, ConversationItem, LiveAnswer } from '../model/types'
import { AnswerView, NoteView, QuestionView, UserView } from './ItemViews'

interface ConversationTabProps {
  run: Run
  store: RunStore
  selected: string | null
  onSelect: (path: string | null) => void
}

export function liveItem(live: LiveAnswer): AnswerItem {
  return {
    kind: 'answer', key: `live ${live.path} ${live.answer}`, seq: null, at: null, turn: null, model: null, text: live.text, thinking: live.thinking,
    calls: Object.entries(live.args).map(([id, { name, text }]) => ({ id, name, args: text, preview: null, failed: false, start: null, end: null })),
    cost: null, tokensIn: 0, tokensOut: 0, live: true,
  }
}

function totals(items: ConversationItem[]): { cost: number | null; tokens: number } {
  let cost: number | null = null
  let tokens = 0
  for (const item of items) {
    if (item.kind !== 'answer') continue
    if (item.cost !== null) cost = (cost ?? 0) + item.cost
    tokens += item.tokensIn + item.tokensOut
  }
  return { cost, tokens }
}

function Item({ item, run }: { item: ConversationItem; run: Run }) {
  if (item.kind === 'answer') return <AnswerView item={item} />
  if (item.kind === 'question') return <QuestionView item={item} run={run} />
  return <NoteView item={item} />
}

function Steps({ conversations, selected, onSelect }: { conversations: Conversation[]; selected: Conversation; onSelect: (path: string) => void }) {
  return (
    <nav aria-label="Steps with a conversation" className="min-h-0 overflow-y-auto border-r border-line max-md:max-h-40 max-md:border-b">
      {conversations.map((conversation) => {
        const { cost, tokens } = totals(conversation.items)
        return (
          <button
            key={conversation.path}
            type="button"
            aria-pressed={conversation === selected}
            onClick={() => onSelect(conversation.path)}
            className={cx('flex w-full items-center gap-2 px-3 py-1.5 text-left', conversation === selected ? 'bg-selected' : 'hover:bg-hover')}
          >
            <span className="min-w-0 flex-1 truncate" title={conversation.path}>
              {conversation.path}
            </span>
            <span className="tabular text-xs text-faint">{cost === null ? (tokens === 0 ? '' : formatShort(tokens)) : formatCost(cost)}</span>
          </button>
        )
      })}
    </nav>
  )
}

export function ConversationTab({ run, store, selected, onSelect }: ConversationTabProps) {
  const { model, version } = store
  const conversations = useMemo(() => [...model.conversations.values()], [version]) // eslint-disable-line react-hooks/exhaustive-deps
  const current = conversations.find((conversation) => conversation.path === selected) ?? conversations.at(-1)
  const unread = model.partial && current !== undefined && current.loaded !== true ? current.path : null
  useEffect(() => {
    if (unread !== null) void store.readConversation(unread)
  }, [unread, store])
  if (current === undefined) {
    return <Empty title="No model has been called yet">Steps that call a model, and agents, show their messages, thoughts, tool calls and questions here.</Empty>
  }
  const live = [...model.live.values()].filter((answer) => answer.path === current.path)
  const message = (run.input as { message?: unknown } | null)?.message
  return (
    <div className="grid h-full min-h-0 md:grid-cols-[minmax(180px,260px)_1fr]">
      <Steps conversations={conversations} selected={current} onSelect={onSelect} />
      <div className="min-h-0 overflow-y-auto">
        <ol aria-label={`Conversation of ${current.path}`} className="mx-auto flex max-w-[860px] flex-col gap-3 p-4">
          <li className="text-center text-xs text-faint">The instructions of an agent are not part of its events.</li>
          {run.target.startsWith('agent:') && typeof message === 'string' && <UserView text={message} />}
          {current.items.map((item) => (
            <Item key={item.key} item={item} run={run} />
          ))}
          {live.map((answer) => (
            <AnswerView key={answer.answer} item={liveItem(answer)} />
          ))}
        </ol>
      </div>
    </div>
  )
}
