/* Inner orchestrations drawn inside the step that runs them: their graphs become one graph with prefixed ids. */
import type { ResponseOf } from '@/api/client'
import { END, type GraphEdgeInput, INNER } from './arrange'
import type { GraphStep } from './GraphCanvas'
import type { Standing } from './standings'

export type RunGraph = ResponseOf<'/api/v2/runs/{run_id}/graph', 'get'>

/** Inner orchestrations are opened in place up to this level; deeper ones are links. */
export const MOST_LEVELS = 2

export interface MergedGraph {
  id: string
  nodes: GraphStep[]
  edges: GraphEdgeInput[]
  taken: number[]
  steps: Record<string, Standing>
  /** Nodes of inner orchestrations that are drawn in place. */
  opened: ReadonlySet<string>
}

/** How many orchestrations a node lies in. */
export function levelOf(id: string): number {
  return id.split(INNER).length - 1
}

/** The nodes to open, from the outermost; an orchestration inside a closed one stays closed. */
export function openNodes(wanted: readonly string[]): string[] {
  const all = new Set(wanted)
  const shown = [...all].filter((id) => levelOf(id) < MOST_LEVELS && id.split(INNER).every((_part, index, parts) => all.has(parts.slice(0, index + 1).join(INNER))))
  return shown.sort((a, b) => levelOf(a) - levelOf(b))
}

/** The path of the latest execution of a node, which names the inner orchestration to read. */
export function pathOf(graph: MergedGraph, id: string, prefix: string): string {
  const known = graph.steps[id]?.last_path
  return known || (prefix === '' ? id : `${prefix}${INNER}${id}`)
}

export function outerGraph(found: RunGraph): MergedGraph {
  const { graph, steps, taken } = found
  return {
    id: `${graph.orchestration_id}@${graph.version ?? ''}`,
    nodes: graph.nodes as GraphStep[],
    edges: graph.edges,
    taken: [...taken],
    steps: steps as Record<string, Standing>,
    opened: new Set(),
  }
}

/** The graph with one more inner orchestration drawn inside the node that runs it. */
export function withInner(outer: MergedGraph, node: string, found: RunGraph): MergedGraph {
  const { graph, steps, taken } = found
  const own = (id: string) => `${node}${INNER}${id}`
  const offset = outer.edges.length
  return {
    id: `${outer.id} ${node}@${graph.version ?? ''}`,
    nodes: [...outer.nodes, ...(graph.nodes as GraphStep[]).map((step) => ({ ...step, id: own(step.id), container: step.container === null ? node : own(step.container) }))],
    edges: [...outer.edges, ...graph.edges.map((edge) => ({ ...edge, source: own(edge.source), target: own(edge.target ?? END) }))],
    taken: [...outer.taken, ...taken.map((index) => index + offset)],
    steps: { ...outer.steps, ...Object.fromEntries(Object.entries(steps).map(([id, standing]) => [own(id), standing as Standing])) },
    opened: new Set([...outer.opened, node]),
  }
}
