/* Lists that the server pages by cursor, and the button that loads the next page. */
import { type InfiniteData, useInfiniteQuery } from '@tanstack/react-query'
import { call, type Params, type PathsWith, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { Topic } from '@/api/query'
import { plural } from '@/format/number'
import { Button } from './Button'

interface Paged {
  next_cursor: string | null
}

type Page<P extends PathsWith<'get'>> = ResponseOf<P, 'get'>

export function usePages<P extends PathsWith<'get'>>(path: P, params: Pick<Params<P, 'get'>, 'path' | 'query'>, options: { topics?: readonly Topic[]; limit?: number; enabled?: boolean; pollMs?: number | false } = {}) {
  const query = useInfiniteQuery<Page<P>, ApiError, InfiniteData<Page<P>, string | undefined>, readonly unknown[], string | undefined>({
    queryKey: [path, 'pages', params.path ?? null, params.query ?? null, options.limit ?? 100],
    queryFn: ({ pageParam, signal }) =>
      call('get', path, { ...params, query: { ...(params.query as object | undefined), limit: options.limit ?? 100, cursor: pageParam }, signal } as unknown as Params<P, 'get'>) as Promise<Page<P>>,
    initialPageParam: undefined,
    getNextPageParam: (page) => (page as unknown as Paged).next_cursor ?? undefined,
    meta: { topics: options.topics },
    enabled: options.enabled,
    refetchInterval: options.pollMs,
  })
  return { query, pages: query.data?.pages ?? [] }
}

/** What follows the rows of a list: what was cut is stated. */
export function PagesFooter({ query, count, noun, many }: { query: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown }; count: number; noun: string; many?: string }) {
  if (!query.hasNextPage) return <span>{count === 0 ? `No ${many ?? `${noun}s`} yet.` : `${plural(count, noun, many)}, no more exist.`}</span>
  return (
    <>
      <Button small disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
        {query.isFetchingNextPage ? 'Loading …' : 'Load more'}
      </Button>
      <span>{plural(count, noun, many)} loaded; more exist.</span>
    </>
  )
}
