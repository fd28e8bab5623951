/* Definitions of every kind through one interface: the endpoints differ only by their names. */
import { useQuery } from '@tanstack/react-query'
import { send } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { Topic } from '@/api/query'
import type { components } from '@/api/schema'
import { useTenantParam } from '@/app/tenant'
import { type Kind, KINDS, LIST_FIELDS } from './kinds'

export type Summary = components['schemas']['CurrentDefinition']
export type Version = components['schemas']['DefinitionVersion']
export type Versions = components['schemas']['VersionList']

const TOPICS: readonly Topic[] = ['definitions']

function useRead<T>(path: string | null, query: Record<string, string | undefined> = {}) {
  const tenant = useTenantParam()
  const search = new URLSearchParams(Object.entries({ ...query, ...tenant }).filter((entry): entry is [string, string] => entry[1] !== undefined)).toString()
  const url = `${path ?? ''}${search === '' ? '' : `?${search}`}`
  return useQuery<T, ApiError>({ queryKey: [url], queryFn: async ({ signal }) => (await send('get', url, { signal })) as T, enabled: path !== null, meta: { topics: TOPICS } })
}

export function useDefinitionList(kind: Kind) {
  const query = useRead<Record<string, Summary[]> & { next_cursor: string | null }>(`/api/v2/${kind}`, { limit: '1000' })
  return { query, rows: query.data?.[LIST_FIELDS[kind]] ?? [], more: query.data !== undefined && query.data.next_cursor !== null }
}

export function useDefinition(kind: Kind, id: string | null, version?: string) {
  return useRead<Version>(id === null ? null : `/api/v2/${kind}/${encodeURIComponent(id)}`, { version })
}

export function useVersions(kind: Kind, id: string) {
  return useRead<Versions>(`/api/v2/${kind}/${encodeURIComponent(id)}/versions`)
}

/** The names that a definition mentions: tools and agents it uses, orchestrations it starts. */
export function mentions(definition: unknown): Set<string> {
  const found = new Set<string>()
  const visit = (value: unknown, key: string) => {
    if (typeof value === 'string') {
      if (/(^|_)(tool|tools|agent|agent_id|orchestration_id|task|mcp_server|mcp_servers|target|server)$/.test(key)) found.add(value)
    } else if (Array.isArray(value)) for (const item of value) visit(item, key)
    else if (typeof value === 'object' && value !== null) for (const [name, item] of Object.entries(value)) visit(item, name === 'name' || name === 'id' ? key : name)
  }
  visit(definition, '')
  return found
}

export interface Use {
  kind: Kind
  id: string
}

/** Definitions that mention this one, found in the bundle of all of them. */
export function useUsedBy(kind: Kind, id: string) {
  const tenant = useTenantParam()
  return useQuery<{ uses: Use[] }, ApiError>({
    queryKey: ['definitions', 'used-by', kind, id, tenant],
    meta: { topics: TOPICS },
    staleTime: 30_000,
    queryFn: async ({ signal }) => {
      const bundle = (await send('post', '/api/v2/bundles/export', { body: { ...tenant } as never, signal })) as Record<string, unknown>
      const uses: Use[] = []
      for (const other of Object.keys(KINDS) as Kind[]) {
        const field = other === 'tools' ? 'custom_tools' : LIST_FIELDS[other]
        for (const definition of (bundle[field] as Record<string, unknown>[] | undefined) ?? []) {
          const name = String(definition.id ?? definition.name ?? '')
          if (!(other === kind && name === id) && mentions(definition).has(id)) uses.push({ kind: other, id: name })
        }
      }
      return { uses }
    },
  })
}
