/* The graph: positions are computed once, edges that the run has taken are emphasised. */
import { Background, type Edge, MarkerType, type Node, Position, ReactFlow, useReactFlow, ReactFlowProvider } from '@xyflow/react'
import '@xyflow/react/dist/base.css'
import { Fullscreen, ZoomIn, ZoomOut } from 'lucide-react'
import { useCallback, useDeferredValue, useEffect, useMemo, useState } from 'react'
import { IconButton } from '@/parts/Button'
import { Skeleton } from '@/parts/Loading'
import { type GraphEdgeInput, isEnd, type Place } from './arrange'
import { type Box, firstView } from './firstView'
import { RouteEdge } from './RouteEdge'
import { EndNode, StepNode, type StepData } from './StepNode'
import { type Standing, Standings, StandingsContext } from './standings'
import { useAnchor } from './useAnchor'
import { useArrangement } from './useArrangement'

export interface GraphStep {
  id: string
  name: string
  type: string
  container: string | null
  uses: Record<string, string>
}

/** How the inner orchestration of a step is reached: drawn in place, or on a page of its own. */
export interface InnerLink {
  href: string
  label: 'open' | 'close'
  here: boolean
}

interface GraphCanvasProps {
  /** Identifies the version of the graph. */
  id: string
  nodes: GraphStep[]
  edges: GraphEdgeInput[]
  /** Positions in `edges` of those that were taken. */
  taken?: readonly number[]
  steps?: Record<string, Standing>
  selected?: string | null
  onSelect?: (id: string) => void
  inner?: (step: GraphStep) => InnerLink | null
  /** Keep the last layout until the next one is computed, for a graph that is edited. */
  keep?: boolean
}

const NODE_TYPES = { step: StepNode, end: EndNode }
const EDGE_TYPES = { route: RouteEdge }
const NO_EDGES: Edge[] = []

/** Sizes and the ends of edges are known, so that nothing in the page has to be measured before it is drawn. */
function placed({ id, x, y, width, height, parent }: Place) {
  const middle = { x: width / 2, width: 0, height: 0 }
  return {
    id, width, height, measured: { width, height }, position: { x, y }, parentId: parent ?? undefined, draggable: false, connectable: false,
    handles: [
      { ...middle, type: 'target' as const, position: Position.Top, y: 0 },
      { ...middle, type: 'source' as const, position: Position.Bottom, y: height },
    ],
  }
}

function Tools() {
  const { zoomIn, zoomOut, fitView } = useReactFlow()
  return (
    <div className="absolute top-2 right-2 z-10 flex rounded-md border border-line bg-surface">
      <IconButton label="Zoom in" icon={ZoomIn} onClick={() => void zoomIn()} />
      <IconButton label="Zoom out" icon={ZoomOut} onClick={() => void zoomOut()} />
      <IconButton label="Show all" icon={Fullscreen} onClick={() => void fitView({ padding: 0.08, maxZoom: 1.1 })} />
    </div>
  )
}

function Canvas({ box, id, nodes, edges, taken = [], steps, selected = null, onSelect, inner, keep = false }: GraphCanvasProps & { box: Box }) {
  const arranged = useArrangement(id, nodes, edges, keep)
  const arrangement = arranged?.arrangement ?? null
  const plain = steps === undefined
  const standings = useMemo(() => new Standings(), [id]) // eslint-disable-line react-hooks/exhaustive-deps
  useEffect(() => {
    if (steps !== undefined) standings.update(steps)
  }, [steps, standings])
  useEffect(() => standings.select(selected), [selected, standings])
  const flowNodes = useMemo<Node[]>(() => {
    if (arranged === null) return []
    const byId = new Map(arranged.nodes.map((node) => [node.id, node]))
    const containers = new Set(arranged.nodes.map((node) => node.container))
    return arranged.arrangement.places.map((place) => {
      const step = byId.get(place.id)
      const shared = placed(place)
      if (step === undefined) return { ...shared, type: 'end', data: {} }
      const data: StepData = { name: step.name, type: step.type, container: containers.has(step.id), plain, inner: inner?.(step) ?? null }
      return { ...shared, type: 'step', data, ariaLabel: `${step.type} ${step.name}` }
    })
  }, [arranged, inner, plain])
  useAnchor(arrangement)
  const takenKey = taken.join(',')
  const flowEdges = useMemo<Edge[]>(() => {
    const known = new Set(takenKey === '' ? [] : takenKey.split(',').map(Number))
    return (arrangement?.lines ?? []).map((line) => {
      const used = line.edges.some((index) => known.has(index))
      const colour = used ? 'var(--accent)' : line.kind === 'error' ? 'var(--bad)' : 'color-mix(in srgb, var(--idle) 55%, var(--surface))'
      return {
        id: line.id,
        source: line.source,
        target: line.target,
        data: { label: line.label },
        type: 'route',
        focusable: false,
        markerEnd: { type: MarkerType.ArrowClosed, color: colour, width: 14, height: 14 },
        style: { stroke: colour, strokeWidth: used ? 2 : 1.2 },
      }
    })
  }, [arrangement, takenKey])
  // The steps are painted first, the edges right after them.
  const shownEdges = useDeferredValue(flowEdges, NO_EDGES)
  if (arrangement === null) return <Skeleton rows={6} />
  return (
    <StandingsContext value={standings}>
      <ReactFlow
        nodes={flowNodes}
        edges={shownEdges}
        nodeTypes={NODE_TYPES}
        edgeTypes={EDGE_TYPES}
        onNodeClick={(_event, node) => !isEnd(node.id) && onSelect?.(node.id)}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        zoomOnDoubleClick={false}
        defaultViewport={firstView(arrangement, box)}
        minZoom={0.1}
        maxZoom={2}
      >
        <Background gap={20} size={1} color="var(--line)" />
      </ReactFlow>
      <Tools />
    </StandingsContext>
  )
}

export default function GraphCanvas(props: GraphCanvasProps) {
  const [box, setBox] = useState<Box | null>(null)
  const measure = useCallback((element: HTMLDivElement | null) => setBox((known) => known ?? element?.getBoundingClientRect() ?? null), [])
  return (
    <div ref={measure} className="relative grid h-full min-h-[420px] w-full">
      {box !== null && (
        <ReactFlowProvider>
          <Canvas box={box} {...props} />
        </ReactFlowProvider>
      )}
    </div>
  )
}
