/* The layout of a graph, computed once for each version of it. */
import { useEffect, useState } from 'react'
import type { Arrangement, GraphEdgeInput, GraphNodeInput } from './arrange'

export function useArrangement(key: string, nodes: GraphNodeInput[], edges: GraphEdgeInput[]): Arrangement | null {
  const [found, setFound] = useState<{ key: string; arrangement: Arrangement } | null>(null)
  useEffect(() => {
    const worker = new Worker(new URL('./arrange.worker.ts', import.meta.url), { type: 'module' })
    worker.onmessage = (event: MessageEvent<Arrangement>) => {
      setFound({ key, arrangement: event.data })
      worker.terminate()
    }
    worker.postMessage({ nodes: nodes.map(({ id, container }) => ({ id, container })), edges })
    return () => worker.terminate()
    // The key names the version of the graph: its nodes and edges never change.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [key])
  return found?.key === key ? found.arrangement : null
}
