/* The events of a run: numbered, virtual, read in windows of a thousand, so that 50,000 of them open at once. */
import { useInfiniteQuery } from '@tanstack/react-query'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useCallback, useEffect, useMemo, useRef, useState } from 'react'
import { call } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { Run } from '@/api/types'
import { formatCount } from '@/format/number'
import { Button } from '@/parts/Button'
import { Select, TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { MAX_VALUE_BYTES, type RunStore } from '../model/store'
import type { RunEvent } from '../model/types'
import { EventRow } from './EventRow'

const PAGE = 500
const ROW = 26

interface EventWindow {
  events: RunEvent[]
  after: number
  next: number
}

/** Events around a number; earlier and later ones are read when they are scrolled to. */
function useEvents(run: Run, from: number) {
  return useInfiniteQuery<EventWindow, ApiError>({
    queryKey: ['events', run.run_id, from],
    initialPageParam: from,
    queryFn: async ({ pageParam, signal }) => {
      const after = pageParam as number
      const page = await call('get', '/api/v2/runs/{run_id}/events', { path: { run_id: run.run_id }, query: { after, limit: PAGE, max_value_bytes: MAX_VALUE_BYTES }, signal })
      return { events: page.events as unknown as RunEvent[], after, next: page.next_after }
    },
    getNextPageParam: (page) => (page.events.length < PAGE ? undefined : page.next),
    getPreviousPageParam: (page) => (page.after <= 0 ? undefined : Math.max(0, page.after - PAGE)),
    staleTime: Infinity,
    refetchOnWindowFocus: false,
  })
}

export function EventsTab({ run, store }: { run: Run; store: RunStore }) {
  const [from, setFrom] = useState(0)
  const [type, setType] = useState('')
  const [path, setPath] = useState('')
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set())
  const [jump, setJump] = useState('')
  const scroller = useRef<HTMLDivElement>(null)
  const query = useEvents(run, from)
  const last = query.data?.pages.at(-1)?.events.at(-1)?.seq ?? 0
  const newest = Math.max(store.model.last, run.last_seq)
  const { fetchNextPage, hasNextPage, isFetching, refetch } = query
  useEffect(() => {
    // The end of the list was reached before; what the stream has brought since is read now.
    if (!isFetching && !hasNextPage && last > 0 && newest > last) void refetch()
  }, [newest, last, hasNextPage, isFetching, refetch])

  const all = useMemo(() => {
    const seen = new Map<number, RunEvent>()
    for (const page of query.data?.pages ?? []) for (const event of page.events) if (event.seq !== undefined) seen.set(event.seq, event)
    return [...seen.values()].sort((a, b) => a.seq! - b.seq!)
  }, [query.data])
  const types = useMemo(() => [...new Set(all.map((event) => event.type))].sort(), [all])
  const shown = useMemo(
    () => all.filter((event) => (type === '' || event.type === type) && (path === '' || (typeof event.path === 'string' && event.path.startsWith(path)))),
    [all, type, path],
  )
  const virtualizer = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    getItemKey: (index) => shown[index]!.seq!,
    overscan: 20,
  })
  const items = virtualizer.getVirtualItems()
  const end = items.at(-1)?.index ?? 0
  useEffect(() => {
    if (hasNextPage && !isFetching && end >= shown.length - 30) void fetchNextPage()
  }, [end, shown.length, hasNextPage, isFetching, fetchNextPage])
  const toggle = useCallback((seq: number) => {
    setOpen((before) => {
      const next = new Set(before)
      if (!next.delete(seq)) next.add(seq)
      return next
    })
  }, [])

  return (
    <div className="flex h-full min-h-0 flex-col">
      <div className="flex flex-wrap items-center gap-1.5 border-b border-line px-3 py-1.5">
        <Select aria-label="Type of event" value={type} options={[['', 'All types'], ...types.map((name) => [name, name] as [string, string])]} onChange={(event) => setType(event.target.value)} />
        <TextInput type="search" aria-label="Path of a step" placeholder="Path" value={path} onChange={(event) => setPath(event.target.value)} className="max-w-44" />
        <form
          className="flex gap-1"
          onSubmit={(event) => {
            event.preventDefault()
            setFrom(Math.max(0, Number(jump) - 1 || 0))
          }}
        >
          <TextInput aria-label="Number of an event" placeholder="Number" inputMode="numeric" value={jump} onChange={(event) => setJump(event.target.value)} className="max-w-24" />
          <Button type="submit">Go</Button>
        </form>
        <Button onClick={() => setFrom(Math.max(0, run.last_seq - 100))}>To the end</Button>
        <span className="ml-auto text-xs text-soft">
          {all.length === 0 ? '' : `${formatCount(all[0]!.seq)} to ${formatCount(all.at(-1)!.seq)} of ${formatCount(newest)}`}
          {shown.length < all.length ? `, ${formatCount(shown.length)} match` : ''}
        </span>
      </div>
      {from > 0 && query.hasPreviousPage && (
        <Button small look="quiet" disabled={query.isFetchingPreviousPage} onClick={() => void query.fetchPreviousPage()} className="self-center">
          Earlier events
        </Button>
      )}
      <Loaded query={query}>
        {() => (
          <div ref={scroller} role="list" aria-label="Events" tabIndex={0} className="min-h-0 flex-1 overflow-auto">
            <div style={{ height: virtualizer.getTotalSize(), position: 'relative' }}>
              {items.map((item) => {
                const event = shown[item.index]!
                return (
                  <EventRow key={item.key} ref={open.has(event.seq!) ? virtualizer.measureElement : undefined} index={item.index} top={item.start} event={event} open={open.has(event.seq!)} onToggle={toggle} />
                )
              })}
            </div>
          </div>
        )}
      </Loaded>
    </div>
  )
}
