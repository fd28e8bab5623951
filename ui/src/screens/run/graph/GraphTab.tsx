/* The graph of the version that the run is pinned to, with the state of the run on it. */
import { ChevronRight } from 'lucide-react'
import { useCallback } from 'react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { Run } from '@/api/types'
import { useAddress } from '@/app/address'
import { Loaded } from '@/parts/Loading'
import { GraphCanvas, type GraphStep } from './lazyCanvas'

interface GraphTabProps {
  run: Run
  selected: string | null
  onSelect: (path: string | null) => void
}

/** The orchestrations around the one that is shown. */
function Crumbs({ path, link }: { path: string; link: (path: string | null) => string }) {
  const parts = path.split('/>')
  return (
    <nav aria-label="Orchestrations around" className="flex items-center gap-1 border-b border-line px-3 py-1 text-xs">
      <Link href={link(null)} className="text-accent hover:underline">
        whole run
      </Link>
      {parts.map((part, index) => (
        <span key={part} className="flex items-center gap-1">
          <ChevronRight size={12} aria-hidden />
          <Link href={link(parts.slice(0, index + 1).join('/>'))} className="text-accent hover:underline">
            {part}
          </Link>
        </span>
      ))}
    </nav>
  )
}

export default function GraphTab({ run, selected, onSelect }: GraphTabProps) {
  const address = useAddress()
  const path = address.get('inner') ?? ''
  const query = useApi('/api/v2/runs/{run_id}/graph', { path: { run_id: run.run_id }, query: { path } }, { topics: ['runs'], runId: run.run_id, keep: true })
  const link = (inner: string | null) => address.link({ inner, step: null })
  const base = address.link({ step: null, inner: null })
  const inner = useCallback(
    (step: GraphStep) => {
      if (step.type !== 'orchestration') return null
      const at = path === '' ? step.id : `${path}/>${step.id}`
      return `${base}${base.includes('?') ? '&' : '?'}inner=${encodeURIComponent(at)}`
    },
    [path, base],
  )
  return (
    <Loaded query={query}>
      {({ graph, steps, taken }) => (
        <div className="flex h-full min-h-0 flex-col">
          {path !== '' && <Crumbs path={path} link={link} />}
          <div className="min-h-0 flex-1">
            <GraphCanvas
              id={`${graph.orchestration_id}@${graph.version ?? ''}`}
              nodes={graph.nodes as GraphStep[]}
              edges={graph.edges}
              taken={taken}
              steps={steps as never}
              selected={Object.entries(steps).find(([, standing]) => standing.last_path === selected)?.[0] ?? selected}
              onSelect={(id) => onSelect(steps[id]?.last_path || id)}
              inner={inner}
            />
          </div>
        </div>
      )}
    </Loaded>
  )
}
