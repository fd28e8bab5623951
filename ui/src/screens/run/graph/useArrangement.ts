/* The layout of a graph, computed once for each version of it, in one worker for all graphs of the page. */
import { useEffect, useState } from 'react'
import type { Arrangement, GraphEdgeInput, GraphNodeInput } from './arrange'

// Started with this module, so that its code loads while the graph is read.
const worker = new Worker(new URL('./arrange.worker.ts', import.meta.url), { type: 'module' })
let requests = 0

interface Arranged<N> {
  key: string
  nodes: N[]
  arrangement: Arrangement
}

/** The arrangement with the nodes that it has. With `keep`, the last one stays until the next one is computed. */
export function useArrangement<N extends GraphNodeInput>(key: string, nodes: N[], edges: GraphEdgeInput[], keep = false): Arranged<N> | null {
  const [found, setFound] = useState<Arranged<N> | null>(null)
  useEffect(() => {
    requests += 1
    const number = requests
    const receive = (event: MessageEvent<{ number: number; arrangement: Arrangement }>) => {
      if (event.data.number === number) setFound({ key, nodes, arrangement: event.data.arrangement })
    }
    worker.addEventListener('message', receive)
    worker.postMessage({ number, nodes: nodes.map(({ id, container }) => ({ id, container })), edges })
    return () => worker.removeEventListener('message', receive)
    // The key names the version of the graph: its nodes and edges never change.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [key])
  return found !== null && (keep || found.key === key) ? found : null
}
