/* A reached cap: what it is, and what an answer does to it. The server computes the same (orchestration/budget.py). */
import type { Question } from '@/api/types'
import { formatCost } from '@/format/number'

export interface ReachedCap {
  scope: string
  limit: number
  spent: number
}

/** The cap that a question is about; null if a newer server describes it in another way. */
export function capOf(question: Question): ReachedCap | null {
  const { scope, limit_usd: limit, spent_usd: spent } = (question.context ?? {}) as Record<string, unknown>
  if (question.about !== 'budget' || typeof scope !== 'string' || typeof limit !== 'number' || typeof spent !== 'number') return null
  return { scope, limit, spent }
}

/** Dollars that a person has typed; null if they are not a number above zero. */
export function amountOf(text: string): number | null {
  const amount = Number(text.trim().replace(/^\$/, ''))
  return text.trim() !== '' && Number.isFinite(amount) && amount > 0 ? amount : null
}

export function raisedCap(cap: ReachedCap, amount: number): number {
  return Math.max(cap.limit, cap.spent) + amount
}

const WHOSE: Record<string, string> = {
  step: 'The step may spend',
  run: 'The run may spend',
  agent: 'In this run, the agent may spend',
  tenant: 'In this run, the tenant may spend',
}

export function raiseConsequence(cap: ReachedCap, amount: number): string {
  const day = cap.scope === 'agent' || cap.scope === 'tenant' ? ' today' : ''
  return `${WHOSE[cap.scope] ?? 'It may spend'} ${formatCost(amount)} more, up to ${formatCost(raisedCap(cap, amount))}${day}. Other runs keep the cap.`
}
