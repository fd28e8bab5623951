/* The entries of a memory, newest first. A corrected entry stays and names its correction. */
import { useInfiniteQuery } from '@tanstack/react-query'
import { call, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { components } from '@/api/schema'
import { useTenantParam } from '@/app/tenant'
import { visible } from '@/format/text'
import { Button } from '@/parts/Button'
import { cx } from '@/parts/classes'
import { Empty } from '@/parts/Empty'
import { JsonView } from '@/parts/json/JsonView'
import { Loaded } from '@/parts/Loading'
import { Time } from '@/parts/Time'
import { MEMORY_LIVE } from './memoryLive'

export type Entry = components['schemas']['MemoryEntry']
type Memory = components['schemas']['Memory']
type EntryPage = ResponseOf<'/api/v2/memory/memories/{memory_id}/entries', 'get'>

const PAGE = 50

export function EntryView({ entry, note }: { entry: Entry; note?: string }) {
  const tags = Object.entries(entry.tags)
  const corrected = entry.corrected_by !== null && entry.corrected_by !== undefined
  return (
    <li data-entry={entry.id} className="flex flex-col gap-1 px-3 py-2">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-0.5 text-xs text-soft">
        <span className="tabular">#{entry.seq}</span>
        <Time at={entry.created_at} />
        {note !== undefined && <span>{note}</span>}
        {tags.map(([name, value]) => <span key={name} className="rounded-sm bg-sunken px-1">{visible(`${name}=${value}`)}</span>)}
        {entry.corrects && <span className="text-accent">corrects an earlier entry</span>}
        {corrected && <span className="text-wait">corrected{entry.correction_reason ? `: ${visible(entry.correction_reason)}` : ''}</span>}
        {entry.synced === false && <span className="text-wait">not in the database yet</span>}
        {entry.expires_at && <span>expires <Time at={entry.expires_at} style="relative" /></span>}
      </div>
      {entry.summary !== '' && <p className="font-medium break-words">{visible(entry.summary)}</p>}
      <p className={cx('max-h-64 overflow-auto break-words whitespace-pre-wrap', corrected && 'text-soft line-through')}>{visible(entry.text)}</p>
      {Object.keys(entry.metadata).length > 0 && <JsonView value={entry.metadata} label="the metadata" openDepth={0} />}
    </li>
  )
}

export function Entries({ memory }: { memory: Memory }) {
  const tenant = useTenantParam()
  const query = useInfiniteQuery<EntryPage, ApiError>({
    queryKey: ['memory-entries', memory.id, tenant],
    initialPageParam: undefined as number | undefined,
    queryFn: ({ pageParam, signal }) =>
      call('get', '/api/v2/memory/memories/{memory_id}/entries', { path: { memory_id: memory.id }, query: { ...tenant, limit: PAGE, before: pageParam as number | undefined }, signal }),
    getNextPageParam: (page) => page.next_before ?? undefined,
    refetchInterval: MEMORY_LIVE.pollMs,
    meta: { topics: MEMORY_LIVE.topics },
  })
  const entries = query.data?.pages.flatMap((page) => page.entries) ?? []
  return (
    <section className="rounded-lg border border-line bg-surface">
      <Loaded query={query}>
        {() => entries.length === 0 ? (
          <Empty title="This memory has no entries" command={`runlane memory create-entry ${memory.id} "Prefers short answers."`}>Agents and programs add entries. They are never changed.</Empty>
        ) : (
          <>
            <ul aria-label="Entries" className="divide-y divide-line">{entries.map((entry) => <EntryView key={entry.id} entry={entry} />)}</ul>
            {query.hasNextPage && (
              <div className="border-t border-line p-2 text-center">
                <Button small disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>Earlier entries</Button>
              </div>
            )}
          </>
        )}
      </Loaded>
    </section>
  )
}
