/* What the run page shows, made from the numbered events of a run. */
import type { RunEvent } from '@/live/runStream'

export type SpanKind = 'step' | 'model' | 'tool' | 'question' | 'group' | 'part'

export interface Span {
  id: string
  parent: string | null
  kind: SpanKind
  /** The type of a step, such as `llm`, or of a group: `parallel`, `loop`. */
  type: string
  name: string
  /** The path of the execution, as the API names it; null for parts without one. */
  path: string | null
  start: number
  end: number | null
  /** A status or outcome of text/status. */
  outcome: string
  attempt: number
  cost: number | null
  tokens: number | null
  /** Execution time that the server measured; without waiting. */
  seconds: number | null
  tries: number
  error: string | null
  seq: number
  children: string[]
  /** Of a long run: children that are not loaded yet. */
  hidden?: { count: number; outcomes: Record<string, number> }
  /** Of a long run: where its further children continue, and how many it has in total. */
  rest?: { cursor: string; total: number }
}

export interface AttemptBand {
  attempt: number
  worker: string
  start: number
  end: number | null
  outcome: string
}

export interface ToolCallItem {
  id: string
  name: string
  args: unknown
  preview: string | null
  failed: boolean
  start: number | null
  end: number | null
}

export interface AnswerItem {
  kind: 'answer'
  key: string
  seq: number | null
  at: number | null
  turn: number | null
  model: string | null
  text: string
  thinking: string
  calls: ToolCallItem[]
  cost: number | null
  tokensIn: number
  tokensOut: number
  /** Still being written; the text is not stored yet. */
  live: boolean
}

export interface QuestionItem {
  kind: 'question'
  key: string
  seq: number
  at: number
  path: string
  prompt: string
  context: unknown
  answeredBy: string | null
  open: boolean
}

export interface NoteItem {
  kind: 'note'
  key: string
  seq: number
  at: number
  text: string
  tone: 'wait' | 'bad' | 'idle'
}

export type ConversationItem = AnswerItem | QuestionItem | NoteItem

export interface Conversation {
  path: string
  name: string
  items: ConversationItem[]
  /** The answers of a long run are read when they are looked at. */
  loaded?: boolean
}

export interface LiveAnswer {
  path: string
  answer: string
  text: string
  thinking: string
  args: Record<string, { name: string; text: string }>
}

export interface RunModel {
  /** The number of the last event that is part of the model. */
  last: number
  /** Events before this number are no longer kept. */
  first: number
  spans: Map<string, Span>
  roots: string[]
  attempts: AttemptBand[]
  conversations: Map<string, Conversation>
  live: Map<string, LiveAnswer>
  /** The highest attempt that was seen: pieces of lower ones are void. */
  attempt: number
  progress: { share: number; note: string | null } | null
  ended: boolean
  /** The model began with the timeline of the server, because the run has very many events. */
  partial: boolean
  /** Edges that were taken, as `from>to`, for the graph. */
  taken: Map<string, number>
  /** How often each step was executed, and its latest outcome. */
  steps: Map<string, { count: number; outcome: string; path: string }>
  lastStep: string | null
}

export type { RunEvent }

export function emptyModel(first = 1): RunModel {
  return {
    last: first - 1,
    first,
    spans: new Map(),
    roots: [],
    attempts: [],
    conversations: new Map(),
    live: new Map(),
    attempt: 0,
    progress: null,
    ended: false,
    partial: false,
    taken: new Map(),
    steps: new Map(),
    lastStep: null,
  }
}
