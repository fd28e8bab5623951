/* The layout runs beside the page, so that a large graph does not stop it. */
import { arrange, type GraphEdgeInput, type GraphNodeInput } from './arrange'

self.onmessage = (event: MessageEvent<{ number: number; nodes: GraphNodeInput[]; edges: GraphEdgeInput[] }>) => {
  const { number, nodes, edges } = event.data
  self.postMessage({ number, arrangement: arrange(nodes, edges) })
}
