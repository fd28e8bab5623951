/* The rows of the list. Loaded rows change in place, new ones are counted and offered: the list never jumps. */
import { type InfiniteData, useInfiniteQuery, useQueryClient } from '@tanstack/react-query'
import { useCallback, useEffect, useRef, useState } from 'react'
import { call, type QueryOf, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { RunSummary } from '@/api/types'
import { connection, onRepair } from '@/live/connection'
import { onHint } from '@/live/hints'
import { isHeld, onRelease } from '@/live/refresh'
import { isEnded } from '@/text/status'

type Query = NonNullable<QueryOf<'/api/v2/runs', 'get'>>
type Page = ResponseOf<'/api/v2/runs', 'get'>
type Pages = InfiniteData<Page, string | undefined>

const PAGE = 100
const GAP_MS = 1_000
/** How many pages are read to fill the first one. */
const FURTHER = 4
export const COUNT_LIMIT = 100

export function useRunList(query: Query) {
  const client = useQueryClient()
  const key = ['/api/v2/runs', 'list', query] as const
  const [fresh, setFresh] = useState(0)
  const list = useInfiniteQuery<Page, ApiError, Pages, typeof key, string | undefined>({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => call('get', '/api/v2/runs', { query: { ...query, limit: PAGE, cursor: pageParam }, signal }),
    initialPageParam: undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchOnWindowFocus: false,
    staleTime: Infinity,
  })
  const text = JSON.stringify(query)
  useEffect(() => setFresh(0), [text])

  const replace = useCallback(
    (rows: RunSummary[]) => {
      const byId = new Map(rows.map((row) => [row.run_id, row]))
      client.setQueryData<Pages>(key, (old) =>
        old === undefined
          ? old
          : { ...old, pages: old.pages.map((page) => ({ ...page, runs: page.runs.map((row) => byId.get(row.run_id) ?? row) })) },
      )
    },
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [client, text],
  )

  const hinted = useRef(new Set<string>())
  const refresh = useCallback(async () => {
    const loaded = client.getQueryData<Pages>(key)?.pages.flatMap((page) => page.runs) ?? []
    const head = await call('get', '/api/v2/runs', { query: { ...query, limit: PAGE } })
    const known = new Set(loaded.map((row) => row.run_id))
    replace(head.runs)
    if (loaded.length === 0 && head.runs.length > 0) {
      client.setQueryData<Pages>(key, { pages: [head], pageParams: [undefined] })
      return
    }
    setFresh(head.runs.filter((row) => !known.has(row.run_id) && row.run_id > (loaded[0]?.run_id ?? '')).length)
    const covered = new Set(head.runs.map((row) => row.run_id))
    const others = loaded.filter((row) => !covered.has(row.run_id))
    // First those that hints have named, such as a failed run that was retried; then those that may have ended.
    const named = others.filter((row) => hinted.current.has(row.run_id))
    const open = others.filter((row) => !isEnded(row.status) && !hinted.current.has(row.run_id))
    hinted.current.clear()
    const ids = [...named, ...open].slice(0, PAGE).map((row) => row.run_id)
    if (ids.length > 0) replace((await call('get', '/api/v2/runs', { query: { ids, limit: PAGE } })).runs)
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [client, replace, text])

  // A hint that came while the page was hidden, paused or held.
  const missed = useRef(false)
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined
    // The list has just been read.
    let last = Date.now()
    const run = () => {
      timer = undefined
      missed.current = isHeld() || connection().paused || document.visibilityState === 'hidden'
      if (missed.current) return
      last = Date.now()
      // A failure is reported by the next query of the page; the list stays as it is.
      void refresh().catch(() => undefined)
    }
    const plan = () => {
      timer ??= setTimeout(run, Math.max(0, last + GAP_MS - Date.now()))
    }
    const catchUp = () => {
      if (missed.current) plan()
    }
    const endHints = onHint((hint) => {
      if (hint.topic !== 'runs' && hint.topic !== '*') return
      for (const id of hint.ids ?? []) hinted.current.add(id)
      plan()
    })
    const ends = [endHints, onRepair(plan), onRelease(catchUp)]
    document.addEventListener('visibilitychange', catchUp)
    return () => {
      clearTimeout(timer)
      for (const end of ends) end()
      document.removeEventListener('visibilitychange', catchUp)
    }
  }, [refresh])

  const showNew = () => {
    setFresh(0)
    void client.resetQueries({ queryKey: key })
  }
  const pages = list.data?.pages ?? []
  const truncated = pages.at(-1)?.truncated === true
  const loaded = pages.reduce((sum, page) => sum + page.runs.length, 0)
  // A filter that few runs match would otherwise begin with a short page and a question.
  const further = truncated && loaded < PAGE && pages.length < FURTHER && !list.isFetching && list.error === null
  const { fetchNextPage } = list
  useEffect(() => {
    if (further) void fetchNextPage()
  }, [further, fetchNextPage])
  return {
    list,
    rows: pages.flatMap((page) => page.runs) as RunSummary[],
    /** The last page ends early because enough runs were examined. */
    truncated,
    since: pages.at(-1)?.examined_from ?? null,
    fresh,
    showNew,
    cancel: () => void client.cancelQueries({ queryKey: key }),
  }
}
