/* Reading through one cache. A query names the live topics that make it stale; the live layer refreshes it. */
import { QueryClient, keepPreviousData, useQuery, type UseQueryResult } from '@tanstack/react-query'
import { buildPath, call, type Params, type PathsWith, type ResponseOf } from './client'
import { ApiError } from './errors'

export type Topic =
  | 'runs'
  | 'inbox'
  | 'lanes'
  | 'workers'
  | 'schedules'
  | 'dead_letters'
  | 'definitions'
  | 'deliveries'
  | 'triggers'
  | 'chat'
  | 'limits'
  | 'memory'
  | 'bulk'
  | 'access'
  | 'secrets'
  | 'views'

declare module '@tanstack/react-query' {
  interface Register {
    defaultError: ApiError
    queryMeta: { topics?: readonly Topic[]; runId?: string }
  }
}

const RETRY_DELAYS = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000]

/** What was read within this time is not read again when another part of the page needs it. */
const STALE_MS = 2_000

/** For figures with hints: it finds what no hint reports, such as a worker that died, and many idle pages ask seldom. */
export const SLOW_POLL_MS = 30_000

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      // A lost connection repairs itself; an answer that names a problem is shown at once.
      retry: (count, error) => error instanceof ApiError && error.retryable && (error.offline || count < 2),
      retryDelay: (count, error) =>
        (error instanceof ApiError && error.retryAfterSeconds !== null ? error.retryAfterSeconds * 1_000 : null) ??
        RETRY_DELAYS[Math.min(count, RETRY_DELAYS.length - 1)]!,
      staleTime: STALE_MS,
      gcTime: 5 * 60_000,
      refetchOnWindowFocus: true,
      networkMode: 'always',
    },
    mutations: { networkMode: 'always' },
  },
})

export interface ReadOptions<T> {
  topics?: readonly Topic[]
  /** Refresh only for hints about this run. */
  runId?: string
  enabled?: boolean
  /** Keep what is shown while the parameters change. */
  keep?: boolean
  pollMs?: number | false | ((value: T | undefined) => number | false)
  /** Poll even while the page is hidden. */
  background?: boolean
  staleMs?: number
  select?: (value: T) => T
}

export function keyOf(path: string, params: { path?: unknown; query?: unknown } = {}): readonly unknown[] {
  return [path, params.path ?? null, params.query ?? null]
}

/** Paths whose resource is being deleted. */
const withdrawn = new Set<string>()

/**
 * Read nothing at or below the path of a resource while it is deleted. A hint about the deletion can arrive before its
 * response, and the page that shows the resource would read it again and fail.
 */
export function withdraw(path: string): () => void {
  const [root] = path.split('?')
  withdrawn.add(root!)
  return () => withdrawn.delete(root!)
}

export function isWithdrawn(path: string): boolean {
  return [...withdrawn].some((root) => path === root || path.startsWith(`${root}/`))
}

export function useApi<P extends PathsWith<'get'>>(
  path: P,
  params: Pick<Params<P, 'get'>, 'path' | 'query'> = {},
  options: ReadOptions<ResponseOf<P, 'get'>> = {},
): UseQueryResult<ResponseOf<P, 'get'>, ApiError> {
  const { pollMs } = options
  return useQuery<ResponseOf<P, 'get'>, ApiError>({
    queryKey: keyOf(path, params),
    queryFn: ({ signal }) => call('get', path, { ...params, signal } as Params<P, 'get'>),
    meta: { topics: options.topics, runId: options.runId },
    enabled: () => options.enabled !== false && !isWithdrawn(buildPath(path, params.path, undefined)),
    placeholderData: options.keep ? (keepPreviousData as never) : undefined,
    refetchInterval: typeof pollMs === 'function' ? ({ state }) => pollMs(state.data) : pollMs,
    refetchIntervalInBackground: options.background,
    // Not undefined, which would replace the default by zero and read everything again that was read ahead.
    staleTime: options.staleMs ?? STALE_MS,
  })
}
