/* The open questions that match the filters in the URL, and which of them is open. */
import { useMemo } from 'react'
import { type Address, useAddress } from '@/app/address'
import { useTenantParam } from '@/app/tenant'
import type { Question } from '@/api/types'
import { parseDuration } from '@/format/duration'
import { serverNow } from '@/format/time'
import { usePages } from '@/parts/pages'
import { keyOfQuestion } from './kinds'

/** A due time that moves with every render would be another query each time. */
const ROUND_MS = 60_000
/** Names in the URL. */
export const FURTHER_FILTERS = ['target', 'agent', 'tool', 'age', 'due']
export const NO_FILTERS = Object.fromEntries(['about', ...FURTHER_FILTERS].map((name) => [name, null]))

export function useInbox() {
  const address = useAddress()
  const tenant = useTenantParam()
  const due = parseDuration(address.get('due') ?? '')
  const before = due === null ? undefined : new Date(Math.ceil((serverNow() + due * 1_000) / ROUND_MS) * ROUND_MS).toISOString()
  const age = parseDuration(address.get('age') ?? '')
  const asked = age === null ? undefined : new Date(Math.floor((serverNow() - age * 1_000) / ROUND_MS) * ROUND_MS).toISOString()
  const about = address.all('about') as Question['about'][]
  const filters = { about: about.length === 0 ? undefined : about, target: address.get('target') ?? undefined, agent: address.get('agent') ?? undefined, tool: address.get('tool') ?? undefined, due_before: before, asked_before: asked }
  const { query, pages } = usePages('/api/v2/inbox', { query: { ...filters, ...tenant } }, { topics: ['inbox'] })
  const questions = useMemo(() => pages.flatMap((page) => page.questions), [pages])
  const run = address.get('run')
  const path = address.get('path')
  const selected = run === null || path === null ? null : { run_id: run, path }
  const filtered = about.length > 0 || FURTHER_FILTERS.some((name) => address.get(name) !== null)
  return { address, query, questions, selected, filtered }
}

export function openQuestion(address: Address, question: Question | undefined, options: { push?: boolean } = {}): void {
  address.set({ run: question?.run_id ?? null, path: question?.path ?? null }, options)
}

/** The question after this one, or the one before it at the end. */
export function neighbour(questions: Question[], selected: { run_id: string; path: string } | null, by: number): Question | undefined {
  const at = selected === null ? -1 : questions.findIndex((question) => keyOfQuestion(question) === keyOfQuestion(selected))
  return questions[Math.max(0, Math.min(questions.length - 1, at + by))]
}

export function nextAfter(questions: Question[], answered: Question): Question | undefined {
  const at = questions.findIndex((question) => keyOfQuestion(question) === keyOfQuestion(answered))
  return questions[at + 1] ?? questions.filter((question) => keyOfQuestion(question) !== keyOfQuestion(answered)).at(-1)
}
