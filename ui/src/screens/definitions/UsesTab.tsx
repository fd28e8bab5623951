/* What uses a definition, directly or through others. */
import { Link } from 'wouter'
import { visible } from '@/format/text'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import type { Kind } from './kinds'
import { kindOf, useUsedBy } from './useDefinitions'

const MOST = 500

export function UsesTab({ kind, id }: { kind: Kind; id: string }) {
  const query = useUsedBy(kind, id)
  return (
    <Loaded query={query} rows={3}>
      {({ used_by: users }) =>
        users.length === 0 ? (
          <Empty title="No definition uses it">Schedules and programs may still start it.</Empty>
        ) : (
          <>
            <ul aria-label="Used by" className="divide-y divide-line">
              {users.map((user) => {
                const found = kindOf(user.kind)
                return (
                  <li key={`${user.kind} ${user.id}`} className="flex gap-3 px-3 py-1.5">
                    {found === undefined ? <span>{visible(user.id)}</span> : <Link href={`/definitions/${found}/${encodeURIComponent(user.id)}`} className="text-accent underline">{visible(user.id)}</Link>}
                    <span className="text-soft">{user.kind.replace('_', ' ')}</span>
                    <span className="min-w-0 truncate text-soft">{visible(user.name)}</span>
                  </li>
                )
              })}
            </ul>
            {users.length >= MOST && <p className="px-3 py-2 text-soft">The first {MOST} are shown.</p>}
          </>
        )
      }
    </Loaded>
  )
}
