/* The graph of a stored version. It is read-only: the definition is the source. */
import { useCallback } from 'react'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { Loaded } from '@/parts/Loading'
import { GraphCanvas, type GraphStep, type InnerLink } from '@/screens/run/graph/lazyCanvas'

export function DefinitionGraph({ id, version, selected = null, onSelect }: { id: string; version?: string; selected?: string | null; onSelect?: (step: string) => void }) {
  const query = useApi('/api/v2/orchestrations/{name}/graph', { path: { name: id }, query: { version, ...useTenantParam() } }, { topics: ['definitions'], keep: true })
  const inner = useCallback(
    (step: GraphStep): InnerLink | null => (step.type === 'orchestration' && step.uses.orchestration !== undefined ? { href: `/definitions/orchestrations/${encodeURIComponent(step.uses.orchestration)}`, label: 'open', here: false } : null),
    [],
  )
  return (
    <Loaded query={query}>
      {(graph) => (
        <GraphCanvas id={`${graph.orchestration_id}@${graph.version ?? ''}`} nodes={graph.nodes as GraphStep[]} edges={graph.edges} selected={selected} onSelect={onSelect} inner={inner} />
      )}
    </Loaded>
  )
}
