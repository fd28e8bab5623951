/* The server's own checks of a definition: the same as `runlane validate`, debounced, older answers are dropped. */
import { useQuery } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { call } from '@/api/client'
import { parseJson } from '@/api/json'
import type { ApiError } from '@/api/errors'
import type { components } from '@/api/schema'
import { useTenantParam } from '@/app/tenant'
import type { Kind } from '../kinds'
import type { Finding } from './JsonEditor'

type Answer = components['schemas']['Findings']

export type Graph = NonNullable<Answer['graph']>

export interface Checked {
  definition: Record<string, unknown> | null
  findings: Finding[]
  state: 'checking' | 'valid' | 'unchanged' | 'invalid' | 'broken' | 'unknown'
  problem: string | null
  /** The graph of the text, if it is a valid orchestration. */
  graph: Graph | null
}

function parse(text: string): Record<string, unknown> | null {
  try {
    const value = parseJson(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null
  } catch {
    return null
  }
}

function findingsOf(answer: Answer): Finding[] {
  return answer.findings.map(({ pointer, step, message, severity }) => ({ pointer, step, message, severity: severity === 'warning' ? 'warning' : 'error' }))
}

export function useCheck(kind: Kind, text: string): Checked {
  const [settled, setSettled] = useState(text)
  const tenant = useTenantParam()
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), 400)
    return () => clearTimeout(timer)
  }, [text])
  const definition = parse(settled)
  const query = useQuery<Answer, ApiError>({
    queryKey: ['definitions', 'check', kind, settled, tenant],
    queryFn: ({ signal }) => call('post', '/api/v2/definitions/check', { body: { kind, definition: definition!, ...tenant }, signal }),
    enabled: definition !== null,
    retry: false,
    staleTime: 60_000,
  })
  const current = parse(text)
  if (current === null) return { definition: null, findings: [], state: 'broken', problem: 'The text is not a JSON object.', graph: null }
  if (settled !== text || query.isPending) return { definition: current, findings: [], state: 'checking', problem: null, graph: null }
  if (query.error !== null) return { definition: current, findings: [], state: 'unknown', problem: query.error.message, graph: null }
  const state = !query.data.valid ? 'invalid' : query.data.change === 'unchanged' ? 'unchanged' : 'valid'
  return { definition: current, findings: findingsOf(query.data), state, problem: state === 'unchanged' ? 'Nothing is changed.' : null, graph: query.data.graph ?? null }
}
