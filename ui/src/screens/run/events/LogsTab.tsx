/* The log lines of a run: what its task logged, or every event as text. */
import { useInfiniteQuery } from '@tanstack/react-query'
import { call, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { Run } from '@/api/types'
import { useAddress } from '@/app/address'
import { asCli } from '@/format/command'
import { formatCount } from '@/format/number'
import { visible } from '@/format/text'
import { Button } from '@/parts/Button'
import { Command } from '@/parts/Copy'
import { Empty } from '@/parts/Empty'
import { Check } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Time } from '@/parts/Time'
import type { RunStore } from '../model/store'
import { useTail } from './useTail'

type Logs = ResponseOf<'/api/v2/runs/{run_id}/logs', 'get'>
type Line = Logs['logs'][number]

/** Events that one page examines. */
const PAGE = 1_000
/** Events that are shown from the end of a long run. */
const NEWEST = 500

/** Lines from an index on. `newest` is the number of the last event: pages follow until it was examined. */
function useLogs(runId: string, from: number, everything: boolean, newest: number) {
  return useInfiniteQuery<Logs, ApiError>({
    queryKey: ['logs', runId, everything, from],
    initialPageParam: from,
    queryFn: ({ pageParam, signal }) =>
      call('get', '/api/v2/runs/{run_id}/logs', { path: { run_id: runId }, query: { since: pageParam as number, limit: PAGE, event: everything ? undefined : 'log' }, signal }),
    // A page without progress is read again, unless its lines are no longer kept.
    getNextPageParam: (page, _pages, since) => (page.next_index < newest && (page.next_index > (since as number) || !page.truncated) ? page.next_index : undefined),
    staleTime: Infinity,
    refetchOnWindowFocus: false,
  })
}

function LineView({ line }: { line: Line }) {
  return (
    <li className="flex gap-3 px-3 hover:bg-hover">
      <span className="shrink-0 text-faint">
        <Time at={line.at} />
      </span>
      <span className="min-w-0 break-words whitespace-pre-wrap">{visible(line.message)}</span>
      {line.fields !== undefined && Object.keys(line.fields).length > 0 && <span className="min-w-0 break-words text-soft">{visible(JSON.stringify(line.fields))}</span>}
    </li>
  )
}

export function LogsTab({ run, store }: { run: Run; store: RunStore }) {
  const address = useAddress()
  const everything = address.get('lines') === 'all'
  const from = Math.max(0, Number(address.get('line') ?? '') || 0)
  const newest = Math.max(store.model.last, run.last_seq)
  const query = useLogs(run.run_id, from, everything, newest)
  const pages = query.data?.pages ?? []
  const lines = pages.flatMap((page) => page.logs)
  const examined = pages.at(-1)?.next_index ?? 0
  // A reader of the first lines of a long run asks for more; once all are loaded, new ones follow by themselves.
  const behind = newest - examined >= PAGE
  useTail(query, !behind)
  return (
    <div className="flex h-full min-h-0 flex-col">
      <div className="flex flex-wrap items-center gap-3 border-b border-line px-3 py-1.5">
        <Check label="All events as text" checked={everything} onChange={(event) => address.set({ lines: event.target.checked ? 'all' : null })} />
        {from > 0 && <Button small onClick={() => address.set({ line: null })}>From the beginning</Button>}
        {newest - from > PAGE && behind && <Button small onClick={() => address.set({ line: String(newest - NEWEST) })}>Newest lines</Button>}
        <div className="ml-auto max-w-full">
          <Command text={asCli('runs', 'logs', run.run_id, '--follow')} />
        </div>
      </div>
      <Loaded query={query}>
        {() =>
          lines.length === 0 && !query.hasNextPage ? (
            <Empty title="No log lines">A task writes a line with ctx.log. Every line is an event of the run.</Empty>
          ) : (
            <ol aria-label="Log lines" tabIndex={0} className="min-h-0 flex-1 overflow-auto py-1 font-mono text-xs leading-5">
              {pages[0]?.truncated === true && from === 0 && <li className="px-3 font-sans text-wait">Earlier lines are no longer kept.</li>}
              {from > 0 && <li className="px-3 font-sans text-soft">Lines before event {formatCount(from + 1)} are not shown.</li>}
              {lines.map((line) => (
                <LineView key={line.index} line={line} />
              ))}
              {behind && (
                <li className="flex flex-wrap items-center gap-2 px-3 py-1 font-sans text-soft">
                  <Button small disabled={query.isFetching} onClick={() => void query.fetchNextPage()}>
                    {query.isFetching ? 'Loading …' : 'Load more'}
                  </Button>
                  Lines up to event {formatCount(examined)} of {formatCount(newest)} are shown. The command above prints all of them.
                </li>
              )}
            </ol>
          )
        }
      </Loaded>
    </div>
  )
}
