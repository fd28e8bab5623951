/* The state by step of a run, from its steps and the version that it is pinned to. */
import { useMemo } from 'react'
import { useApi } from '@/api/query'
import { type Run, targetParts } from '@/api/types'
import { type StateEntry, stateHistory } from './history'

export interface StateHistory {
  initial: Record<string, unknown>
  entries: StateEntry[]
  loading: boolean
  /** More steps exist than were read. */
  more: boolean
}

function initialState(run: Run): Record<string, unknown> {
  const input = (run.input ?? {}) as { message?: unknown; input?: Record<string, unknown> }
  const message = typeof input.message === 'string' ? { user_input: input.message, user_query: input.message } : {}
  return { ...message, ...input.input }
}

export function useStateHistory(run: Run): StateHistory {
  const { kind, name } = targetParts(run.target)
  const steps = useApi('/api/v2/runs/{run_id}/steps', { path: { run_id: run.run_id } }, { topics: ['runs'], runId: run.run_id })
  const definition = useApi(
    '/api/v2/orchestrations/{name}',
    { path: { name }, query: { version: run.definition ?? undefined } },
    { enabled: kind === 'orchestration', staleMs: Infinity },
  )
  return useMemo(() => {
    const body = definition.data?.definition as { steps?: unknown } | undefined
    const definitions = Array.isArray(body?.steps) ? body.steps : []
    const initial = initialState(run)
    return {
      initial,
      entries: stateHistory(initial, steps.data?.steps ?? [], definitions as never),
      loading: steps.data === undefined || (kind === 'orchestration' && definition.isPending),
      more: (steps.data?.next_cursor ?? null) !== null,
    }
  }, [run, kind, steps.data, definition.data, definition.isPending])
}
