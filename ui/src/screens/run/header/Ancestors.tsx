/* The runs that called this one as a tool, from the first caller to the direct one. */
import { ChevronRight } from 'lucide-react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { Run } from '@/api/types'
import { shortId } from '@/format/text'

/** Callers further up are reached through the page of the last one that is shown. */
const MOST = 6

type Parent = NonNullable<Run['parent']>

export function Ancestors({ parent, depth }: { parent: Parent; depth: number }) {
  const query = useApi('/api/v2/runs/{run_id}', { path: { run_id: parent.run_id } }, { staleMs: 60_000 })
  const above = query.data?.parent ?? null
  return (
    <>
      {above !== null && depth < MOST && <Ancestors parent={above} depth={depth + 1} />}
      <ChevronRight size={13} aria-hidden className="shrink-0" />
      <Link href={`/runs/${parent.run_id}`} className="truncate hover:underline" title={`${parent.run_id}, called by ${parent.path}`}>
        {query.data === undefined ? <code className="font-mono text-xs">{shortId(parent.run_id)}</code> : query.data.target.replace(/^\w+:/, '')}
      </Link>
    </>
  )
}
