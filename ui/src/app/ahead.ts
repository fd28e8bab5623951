/* What pages read first. It is asked for while their code loads, so that a cold page waits once and not in turns. */
import { call, type Params, type PathsWith, send } from '@/api/client'
import { keyOf, queryClient } from '@/api/query'
import { GraphCanvas } from '@/screens/run/graph/lazyCanvas'
import { getPreference } from './preferences'

type Ahead = (params: Record<string, string>, search: URLSearchParams) => void

function read<P extends PathsWith<'get'>>(path: P, params: Pick<Params<P, 'get'>, 'path' | 'query'>): void {
  const queryFn = ({ signal }: { signal: AbortSignal }) => call('get', path, { ...params, signal } as Params<P, 'get'>)
  void queryClient.prefetchQuery({ queryKey: keyOf(path, params), queryFn })
}

function readUrl(url: string): void {
  void queryClient.prefetchQuery({ queryKey: [url], queryFn: ({ signal }) => send('get', url, { signal }) })
}

/** By the path of the route. The parameters are those of the page, since they are part of the key of the cache. */
export const AHEAD: Record<string, Ahead> = {
  '/runs/:runId': ({ runId = '' }, search) => {
    read('/api/v2/runs/{run_id}', { path: { run_id: runId } })
    if (search.get('tab') === 'graph') drawAhead()
  },
  '/workers': (_params, search) => read('/api/v2/workers', { query: { gone: search.get('gone') !== null } }),
  '/lanes': () => read('/api/v2/lanes', {}),
  '/definitions/:kind/:id': ({ kind, id = '' }, search) => {
    if (kind !== 'orchestrations' || (search.get('tab') ?? 'graph') !== 'graph') return
    const tenant = getPreference<string | null>('tenant', null)
    const version = search.get('version') ?? undefined
    const words = new URLSearchParams({ ...(version === undefined ? {} : { version }), ...(tenant === null ? {} : { tenant }) }).toString()
    readUrl(`/api/v2/orchestrations/${encodeURIComponent(id)}${words === '' ? '' : `?${words}`}`)
    read('/api/v2/orchestrations/{name}/graph', { path: { name: id }, query: { version, ...(tenant === null ? {} : { tenant }) } })
    drawAhead()
  },
}

function drawAhead(): void {
  GraphCanvas.load().catch(() => undefined)
}

/** The parameters of a path such as `/runs/:runId`; null if it does not match. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split('/')
  const given = path.replace(/(.)\/$/, '$1').split('/')
  if (wanted.length !== given.length) return null
  const params: Record<string, string> = {}
  for (const [index, part] of wanted.entries()) {
    const value = given[index] ?? ''
    if (!part.startsWith(':')) {
      if (part !== value) return null
    } else if (value === '') {
      return null
    } else {
      try {
        params[part.slice(1)] = decodeURIComponent(value)
      } catch {
        return null
      }
    }
  }
  return params
}
