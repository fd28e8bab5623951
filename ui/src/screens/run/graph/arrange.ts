/* Where the steps of a graph lie. Containers are laid out from the inside out, so each is a box of known size. */
import dagre from '@dagrejs/dagre'

export interface GraphNodeInput {
  id: string
  container: string | null
}

export interface GraphEdgeInput {
  source: string
  target: string | null
  kind: string
  label: string
  back: boolean
}

export interface Place {
  id: string
  parent: string | null
  /** Relative to the parent. Whole pixels, so that the size in the page is exactly this one. */
  x: number
  y: number
  width: number
  height: number
}

export interface Line {
  id: string
  source: string
  target: string
  kind: string
  label: string
  back: boolean
  /** Positions in the list of edges that this line stands for. */
  edges: number[]
}

export interface Arrangement {
  places: Place[]
  lines: Line[]
  width: number
  height: number
}

export const NODE_WIDTH = 184
export const NODE_HEIGHT = 46
export const END = '$end'
/** What ids have between a step and the steps of the inner orchestration that is drawn inside it. */
export const INNER = '/>'
const INNER_END = `${INNER}${END}`
const HEAD = 34
const PAD = 14

/** The end of an orchestration; each inner one has its own. */
export function isEnd(id: string): boolean {
  return id === END || id.endsWith(INNER_END)
}

function endsOf(edges: GraphEdgeInput[]): GraphNodeInput[] {
  const ids = new Set(edges.map((edge) => edge.target ?? END).filter(isEnd))
  return [...ids].map((id) => ({ id, container: id === END ? null : id.slice(0, -INNER_END.length) }))
}

function ancestorsOf(id: string, container: Map<string, string | null>): string[] {
  const found: string[] = []
  for (let at: string | null | undefined = id; at !== null && at !== undefined && !found.includes(at); at = container.get(at)) found.push(at)
  return found
}

/** Edges between containers' contents become edges between the boxes that lie side by side. */
export function liftEdges(nodes: GraphNodeInput[], edges: GraphEdgeInput[]): Line[] {
  const container = new Map(nodes.map((node) => [node.id, node.container]))
  const lines = new Map<string, Line>()
  edges.forEach((edge, index) => {
    const target = edge.target ?? END
    const up = ancestorsOf(edge.source, container)
    const down = ancestorsOf(target, container)
    // The box around shows that a step belongs to a container.
    if (up.includes(target) || down.includes(edge.source)) return
    const shared = up.find((id) => down.includes(id)) ?? null
    const source = up[(shared === null ? up.length : up.indexOf(shared)) - 1]
    const lifted = down[(shared === null ? down.length : down.indexOf(shared)) - 1]
    if (source === undefined || lifted === undefined || source === lifted) return
    const id = `${source}>${lifted}>${edge.label}`
    const known = lines.get(id)
    if (known === undefined) lines.set(id, { id, source, target: lifted, kind: edge.kind, label: edge.label, back: edge.back, edges: [index] })
    else known.edges.push(index)
  })
  return [...lines.values()]
}

export function arrange(nodes: GraphNodeInput[], edges: GraphEdgeInput[]): Arrangement {
  const ends = endsOf(edges)
  const lines = liftEdges([...nodes, ...ends], edges)
  const all: GraphNodeInput[] = [...nodes, ...ends.filter((end) => lines.some((line) => line.target === end.id))]
  const parents = new Map(all.map((node) => [node.id, node.container]))
  const places = new Map<string, Place>()

  const layOut = (parent: string | null): { width: number; height: number } => {
    const members = all.filter((node) => node.container === parent)
    const graph = new dagre.graphlib.Graph({ multigraph: true })
    graph.setGraph({ rankdir: 'TB', nodesep: 28, ranksep: 40, marginx: PAD, marginy: PAD })
    graph.setDefaultEdgeLabel(() => ({}))
    for (const member of members) {
      const inner = all.some((node) => node.container === member.id)
      const size = inner ? layOut(member.id) : isEnd(member.id) ? { width: 64, height: 28 } : { width: NODE_WIDTH, height: NODE_HEIGHT }
      graph.setNode(member.id, size)
    }
    for (const line of lines) {
      if (parents.get(line.source) !== parent || parents.get(line.target) !== parent) continue
      const [from, to] = line.back ? [line.target, line.source] : [line.source, line.target]
      graph.setEdge(from, to, { width: line.label.length * 6, height: line.label === '' ? 0 : 14, labelpos: 'c' }, line.id)
    }
    dagre.layout(graph)
    const head = parent === null ? 0 : HEAD
    for (const member of members) {
      const node = graph.node(member.id)
      const [width, height] = [Math.round(node.width), Math.round(node.height)]
      places.set(member.id, { id: member.id, parent, x: Math.round(node.x - width / 2), y: Math.round(node.y - height / 2 + head), width, height })
    }
    const { width = NODE_WIDTH, height = NODE_HEIGHT } = graph.graph()
    return { width: Math.max(width, NODE_WIDTH), height: height + head }
  }
  const { width, height } = layOut(null)
  // A box is drawn before what lies in it.
  const ordered = [...places.values()].sort((a, b) => ancestorsOf(a.id, parents).length - ancestorsOf(b.id, parents).length)
  return { places: ordered, lines, width, height }
}
