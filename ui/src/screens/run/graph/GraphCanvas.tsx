/* The graph: positions are computed once, edges that the run has taken are emphasised. */
import { Background, type Edge, MarkerType, type Node, ReactFlow, useReactFlow, ReactFlowProvider } from '@xyflow/react'
import '@xyflow/react/dist/base.css'
import { Fullscreen, ZoomIn, ZoomOut } from 'lucide-react'
import { useEffect, useMemo } from 'react'
import { IconButton } from '@/parts/Button'
import { Skeleton } from '@/parts/Loading'
import { END, type GraphEdgeInput } from './arrange'
import { EndNode, StepNode, type StepData } from './StepNode'
import { type Standing, Standings, StandingsContext } from './standings'
import { useArrangement } from './useArrangement'

export interface GraphStep {
  id: string
  name: string
  type: string
  container: string | null
  uses: Record<string, string>
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
  /** A link to the graph of an inner orchestration. */
  inner?: (step: GraphStep) => string | null
}

const NODE_TYPES = { step: StepNode, end: EndNode }

function Tools() {
  const { zoomIn, zoomOut, fitView } = useReactFlow()
  return (
    <div className="absolute top-2 right-2 z-10 flex rounded-md border border-line bg-surface">
      <IconButton label="Zoom in" icon={ZoomIn} onClick={() => void zoomIn()} />
      <IconButton label="Zoom out" icon={ZoomOut} onClick={() => void zoomOut()} />
      <IconButton label="Show all" icon={Fullscreen} onClick={() => void fitView({ padding: 0.08 })} />
    </div>
  )
}

function Canvas({ id, nodes, edges, taken = [], steps, selected = null, onSelect, inner }: GraphCanvasProps) {
  const arrangement = useArrangement(id, nodes, edges)
  const standings = useMemo(() => new Standings(), [id]) // eslint-disable-line react-hooks/exhaustive-deps
  useEffect(() => {
    if (steps !== undefined) standings.update(steps)
  }, [steps, standings])
  const flowNodes = useMemo<Node[]>(() => {
    const byId = new Map(nodes.map((node) => [node.id, node]))
    const containers = new Set(nodes.map((node) => node.container))
    return (arrangement?.places ?? []).map((place) => {
      const step = byId.get(place.id)
      const shared = { id: place.id, position: { x: place.x, y: place.y }, width: place.width, height: place.height, parentId: place.parent ?? undefined, draggable: false, connectable: false }
      if (step === undefined) return { ...shared, type: 'end', data: {} }
      const data: StepData = { name: step.name, type: step.type, container: containers.has(step.id), inner: inner?.(step) ?? null, selected: selected === step.id }
      return { ...shared, type: 'step', data, ariaLabel: `${step.type} ${step.name}` }
    })
  }, [arrangement, nodes, selected, inner])
  const takenKey = taken.join(',')
  const flowEdges = useMemo<Edge[]>(() => {
    const known = new Set(takenKey === '' ? [] : takenKey.split(',').map(Number))
    return (arrangement?.lines ?? []).map((line) => {
      const used = line.edges.some((index) => known.has(index))
      const colour = used ? 'var(--accent)' : line.kind === 'error' ? 'var(--bad)' : 'var(--line-strong)'
      return {
        id: line.id,
        source: line.source,
        target: line.target,
        label: line.label,
        type: 'smoothstep',
        focusable: false,
        markerEnd: { type: MarkerType.ArrowClosed, color: colour, width: 14, height: 14 },
        style: { stroke: colour, strokeWidth: used ? 2 : 1.2 },
        labelStyle: { fill: 'var(--soft)', fontSize: 11 },
        labelBgStyle: { fill: 'var(--surface)' },
      }
    })
  }, [arrangement, takenKey])
  if (arrangement === null) return <Skeleton rows={6} />
  return (
    <StandingsContext value={standings}>
      <ReactFlow
        nodes={flowNodes}
        edges={flowEdges}
        nodeTypes={NODE_TYPES}
        onNodeClick={(_event, node) => node.id !== END && onSelect?.(node.id)}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        zoomOnDoubleClick={false}
        fitView
        fitViewOptions={{ padding: 0.08, maxZoom: 1.1 }}
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
  return (
    <div className="relative h-full min-h-[420px] w-full">
      <ReactFlowProvider>
        <Canvas {...props} />
      </ReactFlowProvider>
    </div>
  )
}
