/* The URL is the state: filters, tab and selection are search parameters, so that links and the Back button work. */
import { useCallback, useMemo } from 'react'
import { useLocation, useSearch } from 'wouter'

export type Changes = Record<string, string | readonly string[] | null>

export function withChanges(search: string, changes: Changes): string {
  const next = new URLSearchParams(search)
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name)
    if (value === null || value === '') continue
    for (const item of typeof value === 'string' ? [value] : value) next.append(name, item)
  }
  const text = next.toString().replaceAll('%3A', ':').replaceAll('%2F', '/').replaceAll('%2C', ',')
  return text === '' ? '' : `?${text}`
}

export interface Address {
  params: URLSearchParams
  get: (name: string) => string | null
  all: (name: string) => string[]
  /** Change parameters of this page. `push` adds an entry to the history. */
  set: (changes: Changes, options?: { push?: boolean }) => void
  /** A link to this page with changed parameters. */
  link: (changes: Changes) => string
}

export function useAddress(): Address {
  const [path, navigate] = useLocation()
  const search = useSearch()
  const params = useMemo(() => new URLSearchParams(search), [search])
  const set = useCallback(
    (changes: Changes, options: { push?: boolean } = {}) => {
      // Read the bar and not the render: two changes in one event must both apply.
      navigate(path + withChanges(window.location.search, changes), { replace: options.push !== true })
    },
    [navigate, path],
  )
  return {
    params,
    get: (name) => params.get(name),
    all: (name) => params.getAll(name),
    set,
    link: (changes) => path + withChanges(search, changes),
  }
}
