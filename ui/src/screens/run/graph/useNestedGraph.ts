/* The graph of a run with the inner orchestrations that are opened in it, each read when it is opened. */
import { useQueries, type UseQueryResult } from '@tanstack/react-query'
import { useMemo } from 'react'
import { call } from '@/api/client'
import type { ApiError } from '@/api/errors'
import { keyOf, type Topic } from '@/api/query'
import { levelOf, type MergedGraph, openNodes, outerGraph, pathOf, type RunGraph, withInner } from './nested'

const PATH = '/api/v2/runs/{run_id}/graph'
const TOPICS: readonly Topic[] = ['runs']

interface Nested {
  graph: MergedGraph
  problem: ApiError | null
  /** An inner orchestration is being read. */
  pending: boolean
}

interface Read {
  data: RunGraph | undefined
  error: ApiError | null
}

// One function for all renders, so that the result changes only with what was read.
const combine = (results: UseQueryResult<RunGraph, ApiError>[]): Read[] => results.map(({ data, error }) => ({ data, error }))

function useGraphs(runId: string, paths: string[]): Read[] {
  return useQueries({
    queries: paths.map((path) => {
      const params = { path: { run_id: runId }, query: { path } }
      return {
        queryKey: keyOf(PATH, params),
        queryFn: ({ signal }: { signal: AbortSignal }) => call('get', PATH, { ...params, signal }),
        meta: { topics: TOPICS, runId },
      }
    }),
    combine,
  })
}

/** One more level: the nodes of `wanted` that are orchestrations of the graph so far. */
function useLevel(runId: string, graph: MergedGraph, level: number, wanted: readonly string[], prefix: string): Nested {
  const nodes = openNodes(wanted).filter((id) => levelOf(id) === level && graph.nodes.some((node) => node.id === id && node.type === 'orchestration'))
  const found = useGraphs(runId, nodes.map((id) => pathOf(graph, id, prefix)))
  const key = nodes.join(' ')
  const pending = found.some(({ data, error }) => data === undefined && error === null)
  return useMemo(
    () => ({
      graph: nodes.reduce((merged, id, index) => (found[index]?.data === undefined ? merged : withInner(merged, id, found[index].data)), graph),
      problem: found.find(({ error }) => error !== null)?.error ?? null,
      pending,
    }),
    // The key stands for the nodes.
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [graph, found, key, pending],
  )
}

/** `prefix` is the path of the orchestration that fills the view; empty for that of the run. */
export function useNestedGraph(runId: string, outer: RunGraph, wanted: readonly string[], prefix: string): Nested {
  const whole = useMemo(() => outerGraph(outer), [outer])
  const first = useLevel(runId, whole, 0, wanted, prefix)
  const second = useLevel(runId, first.graph, 1, wanted, prefix)
  return { graph: second.graph, problem: first.problem ?? second.problem, pending: first.pending || second.pending }
}
