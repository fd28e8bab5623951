/* What a definition uses, and what uses it. */
import { Link } from 'wouter'
import { Loaded } from '@/parts/Loading'
import { type Kind, KINDS } from './kinds'
import { mentions, useUsedBy, type Version } from './useDefinitions'

export function UsesTab({ kind, definition }: { kind: Kind; definition: Version }) {
  const usedBy = useUsedBy(kind, definition.id)
  const uses = [...mentions(definition.definition)].sort()
  return (
    <div className="grid gap-4 p-3 md:grid-cols-2">
      <section>
        <h2 className="mb-1 font-semibold">Used by</h2>
        <Loaded query={usedBy} rows={3}>
          {({ uses: found }) =>
            found.length === 0 ? <p className="text-soft">No definition mentions it. Schedules and programs may still start it.</p> : (
              <ul>{found.map((use) => <li key={`${use.kind} ${use.id}`} className="py-0.5"><Link href={`/definitions/${use.kind}/${encodeURIComponent(use.id)}`} className="text-accent underline">{use.id}</Link> <span className="text-soft">{KINDS[use.kind].one.replace('_', ' ')}</span></li>)}</ul>
            )
          }
        </Loaded>
      </section>
      <section>
        <h2 className="mb-1 font-semibold">Uses</h2>
        {uses.length === 0 ? <p className="text-soft">It names no other definition.</p> : <ul>{uses.map((name) => <li key={name} className="py-0.5"><Link href={`/definitions?text=${encodeURIComponent(name)}`} className="text-accent underline">{name}</Link></li>)}</ul>}
      </section>
    </div>
  )
}
