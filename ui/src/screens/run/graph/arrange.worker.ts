/* The layout runs beside the page, so that a large graph does not stop it. */
import { arrange, type GraphEdgeInput, type GraphNodeInput } from './arrange'

self.onmessage = (event: MessageEvent<{ nodes: GraphNodeInput[]; edges: GraphEdgeInput[] }>) => {
  self.postMessage(arrange(event.data.nodes, event.data.edges))
}
