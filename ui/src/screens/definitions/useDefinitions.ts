/* Definitions of every kind through one interface: the endpoints differ only by their names. */
import { useQuery } from '@tanstack/react-query'
import { send } from '@/api/client'
import type { ApiError } from '@/api/errors'
import { type Topic, useApi } from '@/api/query'
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

/** Definitions whose runs may use this one, directly or through others. */
export function useUsedBy(kind: Kind, id: string) {
  return useApi('/api/v2/definitions/{kind}/{name}/used-by', { path: { kind, name: id }, query: useTenantParam() }, { topics: TOPICS })
}

/** How many definitions use each definition of a kind. */
export function useUserCounts(kind: Kind) {
  return useApi('/api/v2/definitions/{kind}/used-by', { path: { kind }, query: useTenantParam() }, { topics: TOPICS }).data?.counts
}

/** The kind as addresses name it. */
export function kindOf(singular: string): Kind | undefined {
  return (Object.keys(KINDS) as Kind[]).find((kind) => KINDS[kind].one === singular)
}
