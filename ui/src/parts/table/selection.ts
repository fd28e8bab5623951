/* The selected rows of a table. */
import { useMemo, useState } from 'react'

export interface Selection {
  ids: ReadonlySet<string>
  /** The row that was selected last: Shift selects from there. */
  last: string | null
  has: (id: string) => boolean
  toggle: (id: string, shift: boolean) => void
  add: (ids: string[]) => void
  clear: () => void
}

export function useSelection(): Selection {
  const [ids, setIds] = useState<ReadonlySet<string>>(new Set())
  const [last, setLast] = useState<string | null>(null)
  return useMemo(
    () => ({
      ids,
      last,
      has: (id) => ids.has(id),
      toggle: (id) => {
        const next = new Set(ids)
        if (!next.delete(id)) next.add(id)
        setIds(next)
        setLast(id)
      },
      add: (more) => {
        setIds(new Set([...ids, ...more]))
        setLast(more.at(-1) ?? null)
      },
      clear: () => {
        setIds(new Set())
        setLast(null)
      },
    }),
    [ids, last],
  )
}
