/* The events of a run: numbered, virtual, read in windows of a thousand, so that 50,000 of them open at once. */
import { useInfiniteQuery } from '@tanstack/react-query'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useCallback, useEffect, useMemo, useRef, useState } from 'react'
import { call } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { Run } from '@/api/types'
import { useAddress } from '@/app/address'
import { formatCount } from '@/format/number'
import { Button } from '@/parts/Button'
import { Empty } from '@/parts/Empty'
import { Select, TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { MAX_VALUE_BYTES, type RunStore } from '../model/store'
import type { RunEvent } from '../model/types'
import { EventRow } from './EventRow'
import { useTail } from './useTail'

const PAGE = 500
const ROW = 26

interface EventWindow {
  events: RunEvent[]
  /** The numbers between which events were examined. */
  after: number
  next: number
  /** The events are no longer kept. */
  gone: boolean
}

interface Filter {
  type: string
  path: string
}

/** Events after a number; later ones are read when they are scrolled to. The server filters, and examines only a part at once. */
function useEvents(run: Run, from: number, { type, path }: Filter, newest: number) {
  return useInfiniteQuery<EventWindow, ApiError>({
    queryKey: ['events', run.run_id, from, type, path],
    initialPageParam: from,
    queryFn: async ({ pageParam, signal }) => {
      const after = pageParam as number
      const query = { after, limit: PAGE, max_value_bytes: MAX_VALUE_BYTES, type: type === '' ? undefined : [type], path_prefix: path || undefined }
      const page = await call('get', '/api/v2/runs/{run_id}/events', { path: { run_id: run.run_id }, query, signal })
      return { events: page.events as unknown as RunEvent[], after, next: page.next_after, gone: page.first_seq > page.last_seq }
    },
    // A page can end before its limit, because its events are large or because the server has examined enough.
    getNextPageParam: (page) => (page.next < newest && !page.gone ? page.next : undefined),
    getPreviousPageParam: (page) => (page.after <= 0 ? undefined : Math.max(0, page.after - PAGE)),
    staleTime: Infinity,
    refetchOnWindowFocus: false,
  })
}

/** Typing does not search; a pause does. */
function PathFilter({ value, onChange }: { value: string; onChange: (path: string) => void }) {
  const [text, setText] = useState(value)
  useEffect(() => setText(value), [value])
  useEffect(() => {
    if (text === value) return
    const timer = setTimeout(() => onChange(text), 400)
    return () => clearTimeout(timer)
    // The callback is another one with each render.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [text, value])
  return <TextInput type="search" aria-label="Path of a step" placeholder="Path" value={text} onChange={(event) => setText(event.target.value)} className="max-w-44" />
}

export function EventsTab({ run, store }: { run: Run; store: RunStore }) {
  const address = useAddress()
  const filter = { type: address.get('type') ?? '', path: address.get('path') ?? '' }
  const filtered = filter.type !== '' || filter.path !== ''
  const from = Math.max(0, Number(address.get('from') ?? '') || 0)
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set())
  const [jump, setJump] = useState('')
  const scroller = useRef<HTMLDivElement>(null)
  const newest = Math.max(store.model.last, run.last_seq)
  const query = useEvents(run, from, filter, newest)
  const shown = useMemo(() => {
    const seen = new Map<number, RunEvent>()
    for (const page of query.data?.pages ?? []) for (const event of page.events) if (event.seq !== undefined) seen.set(event.seq, event)
    return [...seen.values()].sort((a, b) => a.seq! - b.seq!)
  }, [query.data])
  const [known, setKnown] = useState<ReadonlySet<string>>(new Set())
  // Types stay in the choice while a filter shows others.
  const fresh = shown.filter((event) => !known.has(event.type)).map((event) => event.type)
  if (fresh.length > 0) setKnown(new Set([...known, ...fresh]))
  const types = [...new Set([...known, ...(filter.type === '' ? [] : [filter.type])])].sort()
  const first = query.data?.pages[0]?.after ?? from
  const examined = query.data?.pages.at(-1)?.next ?? 0
  const virtualizer = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    getItemKey: (index) => shown[index]!.seq!,
    overscan: 20,
  })
  const items = virtualizer.getVirtualItems()
  const end = items.at(-1)?.index ?? 0
  // At the end of the list, or where it is complete and the run adds to it.
  useTail(query, end >= shown.length - 30 || newest - examined < PAGE)
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
        <Select aria-label="Type of event" value={filter.type} options={[['', 'All types'], ...types.map((name) => [name, name] as [string, string])]} onChange={(event) => address.set({ type: event.target.value || null })} />
        <PathFilter value={filter.path} onChange={(path) => address.set({ path: path || null })} />
        <form
          className="flex gap-1"
          onSubmit={(event) => {
            event.preventDefault()
            address.set({ from: String(Math.max(0, Number(jump) - 1 || 0)) })
          }}
        >
          <TextInput aria-label="Number of an event" placeholder="Number" inputMode="numeric" value={jump} onChange={(event) => setJump(event.target.value)} className="max-w-24" />
          <Button type="submit">Go</Button>
        </form>
        <Button onClick={() => address.set({ from: String(Math.max(0, newest - 100)) })}>To the end</Button>
        <span className="ml-auto text-xs text-soft">
          {query.data === undefined ? '' : `${formatCount(Math.min(first + 1, examined))} to ${formatCount(examined)} of ${formatCount(newest)}`}
          {query.data !== undefined && filtered ? `, ${formatCount(shown.length)} match` : ''}
        </span>
      </div>
      {from > 0 && query.hasPreviousPage && (
        <Button small look="quiet" disabled={query.isFetchingPreviousPage} onClick={() => void query.fetchPreviousPage()} className="self-center">
          Earlier events
        </Button>
      )}
      <Loaded query={query}>
        {() => shown.length === 0 && !query.hasNextPage ? (
          <Empty title={filtered ? 'No event matches' : 'No event yet'} actions={filtered ? <Button onClick={() => address.set({ type: null, path: null })}>Clear the filters</Button> : undefined} />
        ) : (
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
