/* What questions are about, and what an answer to each does. */
import { CircleHelp, Coins, Hand, type LucideIcon, UserRoundPen } from 'lucide-react'
import type { Question } from '@/api/types'
import type { Tone } from '@/text/status'

export interface KindText {
  word: string
  tone: Tone
  icon: LucideIcon
  meaning: string
}

const KINDS: Record<string, KindText> = {
  step: { word: 'Human step', tone: 'person', icon: UserRoundPen, meaning: 'A step of an orchestration asks for a decision or for data.' },
  approval: { word: 'Tool approval', tone: 'wait', icon: Hand, meaning: 'An agent needs permission to call a tool with these arguments.' },
  unknown_effect: { word: 'Unknown effect', tone: 'bad', icon: CircleHelp, meaning: 'A worker died during a call that must happen once. Check whether it has happened.' },
  budget: { word: 'Budget', tone: 'busy', icon: Coins, meaning: 'The run has reached its cost limit. Raise it or end the run.' },
}

export const KIND_NAMES = Object.keys(KINDS) as Question['about'][]

export function kindText(about: string): KindText {
  return KINDS[about] ?? { word: about.replaceAll('_', ' '), tone: 'idle', icon: CircleHelp, meaning: '' }
}

/** The tool that a question is about, if it is about one. */
export function toolOf(question: Question): string | null {
  const name = (question.context as { tool_name?: unknown } | null)?.tool_name
  return typeof name === 'string' ? name : null
}

export function argumentsOf(question: Question): unknown {
  return (question.context as { arguments?: unknown } | null)?.arguments
}

export function keyOfQuestion(question: { run_id: string; path: string }): string {
  return `${question.run_id} ${question.path}`
}

/** What happens when this answer is sent. */
export function answerConsequence(question: Question, decision: unknown): string {
  const tool = toolOf(question)
  const recorded = 'The answer is recorded with your name and cannot be changed.'
  if (question.about === 'approval' && tool !== null) {
    if (decision === 'approve') return `${tool} is called with the arguments above, and the run continues. ${recorded}`
    if (decision === 'edit') return `${tool} is called with your arguments instead, and the run continues. ${recorded}`
    if (decision === 'deny') return `${tool} is not called. The model gets your reason and continues. ${recorded}`
  }
  return `The run continues with this answer. ${recorded}`
}

export function expiryText(question: Question): string {
  return question.due_at === null ? 'It waits without a limit.' : 'Without an answer by then, the step continues on its expiry route, or fails.'
}
