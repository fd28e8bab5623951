/* What uses a definition and what it uses, directly or through others. */
import { Link } from 'wouter'
import { visible } from '@/format/text'
import { Loaded } from '@/parts/Loading'
import type { Kind } from './kinds'
import { kindOf, useUsedBy } from './useDefinitions'

const MOST = 500

function Connected({ title, empty, items }: { title: string; empty: string; items: { kind: string; id: string; name?: string }[] }) {
  return (
    <section>
      <h2 className="px-3 pt-3 pb-1 font-semibold">{title}</h2>
      {items.length === 0 && <p className="px-3 pb-2 text-soft">{empty}</p>}
      <ul aria-label={title} className="divide-y divide-line">
        {items.map((item) => {
          const found = kindOf(item.kind)
          return (
            <li key={`${item.kind} ${item.id}`} className="flex gap-3 px-3 py-1.5">
              {found === undefined ? <span>{visible(item.id)}</span> : <Link href={`/definitions/${found}/${encodeURIComponent(item.id)}`} className="text-accent underline">{visible(item.id)}</Link>}
              <span className="text-soft">{item.kind.replace('_', ' ')}</span>
              {item.name !== undefined && <span className="min-w-0 truncate text-soft">{visible(item.name)}</span>}
            </li>
          )
        })}
      </ul>
      {items.length >= MOST && <p className="px-3 py-2 text-soft">The first {MOST} are shown.</p>}
    </section>
  )
}

export function UsesTab({ kind, id }: { kind: Kind; id: string }) {
  const query = useUsedBy(kind, id)
  return (
    <Loaded query={query} rows={3}>
      {({ used_by: users, uses }) => (
        <>
          <Connected title="Used by" empty="No definition uses it. Schedules and programs may still start it." items={users} />
          <Connected title="Uses" empty="It uses no other definition." items={uses} />
        </>
      )}
    </Loaded>
  )
}
