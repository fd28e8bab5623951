/* The log lines of a run: what its task logged, or every event as text. */
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { call, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { Run } from '@/api/types'
import { asCli } from '@/format/command'
import { visible } from '@/format/text'
import { Command } from '@/parts/Copy'
import { Empty } from '@/parts/Empty'
import { Check } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Time } from '@/parts/Time'
import type { RunStore } from '../model/store'

type Logs = ResponseOf<'/api/v2/runs/{run_id}/logs', 'get'>
const PAGE = 1_000

export function LogsTab({ run, store }: { run: Run; store: RunStore }) {
  const [everything, setEverything] = useState(false)
  const query = useQuery<Logs, ApiError>({
    queryKey: ['logs', run.run_id, everything, Math.max(store.model.last, run.last_seq)],
    queryFn: ({ signal }) =>
      call('get', '/api/v2/runs/{run_id}/logs', { path: { run_id: run.run_id }, query: { limit: PAGE, event: everything ? undefined : 'log' }, signal }),
    placeholderData: (previous) => previous,
    meta: {},
  })
  return (
    <div className="flex h-full min-h-0 flex-col">
      <div className="flex flex-wrap items-center gap-3 border-b border-line px-3 py-1.5">
        <Check label="All events as text" checked={everything} onChange={(event) => setEverything(event.target.checked)} />
        <div className="ml-auto max-w-full">
          <Command text={asCli('runs', 'logs', run.run_id, '--follow')} />
        </div>
      </div>
      <Loaded query={query}>
        {({ logs, truncated }) =>
          logs.length === 0 ? (
            <Empty title="No log lines">A task writes a line with ctx.log. Every line is an event of the run.</Empty>
          ) : (
            <ol aria-label="Log lines" tabIndex={0} className="min-h-0 flex-1 overflow-auto py-1 font-mono text-xs leading-5">
              {truncated && <li className="px-3 text-wait">Earlier lines are no longer kept.</li>}
              {logs.map((line) => (
                <li key={line.index} className="flex gap-3 px-3 hover:bg-hover">
                  <span className="shrink-0 text-faint">
                    <Time at={line.at} />
                  </span>
                  <span className="min-w-0 break-words whitespace-pre-wrap">{visible(line.message)}</span>
                  {line.fields !== undefined && Object.keys(line.fields).length > 0 && <span className="min-w-0 break-words text-soft">{visible(JSON.stringify(line.fields))}</span>}
                </li>
              ))}
              {logs.length >= PAGE && <li className="px-3 py-1 font-sans text-soft">The first {PAGE} lines are shown. The command above prints all of them.</li>}
            </ol>
          )
        }
      </Loaded>
    </div>
  )
}
