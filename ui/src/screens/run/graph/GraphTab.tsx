/* The graph of the version that the run is pinned to, with the state of the run on it. */
import { ChevronRight } from 'lucide-react'
import { useCallback, useState } from 'react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { Run } from '@/api/types'
import { useAddress } from '@/app/address'
import { ErrorNote, Loaded, Skeleton } from '@/parts/Loading'
import { INNER } from './arrange'
import { GraphCanvas, type GraphStep, type InnerLink } from './lazyCanvas'
import { levelOf, MOST_LEVELS, pathOf, type RunGraph } from './nested'
import { useNestedGraph } from './useNestedGraph'

interface GraphTabProps {
  run: Run
  selected: string | null
  onSelect: (path: string | null) => void
}

/** The orchestrations around the one that is shown. */
function Crumbs({ path, link }: { path: string; link: (path: string | null) => string }) {
  const parts = path.split(INNER)
  return (
    <nav aria-label="Orchestrations around" className="flex flex-wrap items-center gap-1 border-b border-line px-3 py-1 text-xs">
      <Link href={link(null)} className="text-accent hover:underline">
        whole run
      </Link>
      {parts.map((part, index) => (
        <span key={part} className="flex items-center gap-1">
          <ChevronRight size={12} aria-hidden />
          <Link href={link(parts.slice(0, index + 1).join(INNER))} className="text-accent hover:underline">
            {part}
          </Link>
        </span>
      ))}
    </nav>
  )
}

function NestedGraph({ run, found, path, selected, onSelect }: GraphTabProps & { found: RunGraph; path: string }) {
  const address = useAddress()
  const wanted = address.all('open')
  const { graph, problem, pending } = useNestedGraph(run.run_id, found, wanted, path)
  // A link shows all that it opens at once; what is opened later grows in place.
  const [shown, setShown] = useState(!pending)
  if (!pending && !shown) setShown(true)
  const { opened, steps } = graph
  const search = address.params.toString()
  const inner = useCallback(
    (step: GraphStep): InnerLink | null => {
      if (step.type !== 'orchestration') return null
      if (levelOf(step.id) >= MOST_LEVELS) return { href: address.link({ inner: pathOf(graph, step.id, path), open: null, step: null }), label: 'open', here: false }
      // What lies inside is closed with it.
      const others = wanted.filter((id) => id !== step.id && !id.startsWith(`${step.id}${INNER}`))
      if (opened.has(step.id)) return { href: address.link({ open: others }), label: 'close', here: true }
      return { href: address.link({ open: [...others, step.id] }), label: 'open', here: true }
    },
    // The links change with the address and with what is drawn; the state of the steps is not part of them.
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [search, graph.id, path],
  )
  if (!shown) return <Skeleton rows={6} />
  return (
    <div className="flex h-full min-h-0 flex-col">
      {path !== '' && <Crumbs path={path} link={(to) => address.link({ inner: to, open: null, step: null })} />}
      {problem !== null && <ErrorNote error={problem} />}
      <div className="min-h-0 flex-1">
        <GraphCanvas
          key={path}
          keep
          id={graph.id}
          nodes={graph.nodes}
          edges={graph.edges}
          taken={graph.taken}
          steps={steps}
          selected={Object.entries(steps).find(([, standing]) => standing.last_path === selected)?.[0] ?? selected}
          onSelect={(id) => onSelect(steps[id]?.last_path || id)}
          inner={inner}
        />
      </div>
    </div>
  )
}

export default function GraphTab({ run, selected, onSelect }: GraphTabProps) {
  const path = useAddress().get('inner') ?? ''
  const query = useApi('/api/v2/runs/{run_id}/graph', { path: { run_id: run.run_id }, query: { path } }, { topics: ['runs'], runId: run.run_id, keep: true })
  return <Loaded query={query}>{(found) => <NestedGraph run={run} found={found} path={path} selected={selected} onSelect={onSelect} />}</Loaded>
}
