/* The server's own checks of a text: the same as `runlane validate`, debounced, older answers are dropped. */
import { useQuery } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { send } from '@/api/client'
import { ApiError } from '@/api/errors'
import type { components } from '@/api/schema'
import { EDITOR_SOURCE, type Kind, LIST_FIELDS } from '../kinds'
import type { Finding } from './JsonEditor'

type Answer = components['schemas']['SyncAnswer']

export interface Checked {
  definition: Record<string, unknown> | null
  findings: Finding[]
  state: 'checking' | 'valid' | 'invalid' | 'broken' | 'unknown'
  problem: string | null
}

export function syncBody(kind: Kind, definition: Record<string, unknown>, options: { dry_run?: boolean; take_over?: boolean } = {}): Record<string, unknown> {
  return { source: EDITOR_SOURCE, [LIST_FIELDS[kind]]: [definition], ...options }
}

function parse(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null
  } catch {
    return null
  }
}

function findingsOf(error: ApiError): Finding[] {
  if (error.fields.length === 0) return [{ place: '', message: error.message, severity: 'error' }]
  return error.fields.map(({ field, message }) => ({ place: field, message, severity: 'error' }))
}

function warningsOf(answer: Answer): Finding[] {
  return answer.warnings.map((warning) => ({ place: [warning.step === null ? '' : `step "${warning.step}"`, warning.field === null ? '' : `field ${warning.field}`].filter(Boolean).join(', '), message: warning.message, severity: 'warning' }))
}

export function useCheck(kind: Kind, text: string): Checked {
  const [settled, setSettled] = useState(text)
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), 400)
    return () => clearTimeout(timer)
  }, [text])
  const definition = parse(settled)
  const query = useQuery<Answer, ApiError>({
    queryKey: ['definitions', 'check', kind, settled],
    // Whose definition it is does not matter for its content, so the check takes over without a change.
    queryFn: async ({ signal }) => (await send('post', '/api/v2/sync', { body: syncBody(kind, definition!, { dry_run: true, take_over: true }) as never, signal })) as Answer,
    enabled: definition !== null,
    retry: false,
    staleTime: Infinity,
  })
  const current = parse(text)
  if (current === null) return { definition: null, findings: [], state: 'broken', problem: 'The text is not a JSON object.' }
  if (settled !== text || query.isPending) return { definition: current, findings: [], state: 'checking', problem: null }
  if (query.error !== null) {
    if (query.error.status === 422 || query.error.status === 409 || query.error.status === 404) return { definition: current, findings: findingsOf(query.error), state: 'invalid', problem: null }
    return { definition: current, findings: [], state: 'unknown', problem: query.error.message }
  }
  return { definition: current, findings: warningsOf(query.data), state: 'valid', problem: null }
}
