/* The state after each step, with the difference to the step before. */
import { useState } from 'react'
import type { Run } from '@/api/types'
import { useAddress } from '@/app/address'
import { cx } from '@/parts/classes'
import { LineDiff } from '@/parts/diff/LineDiff'
import { Empty } from '@/parts/Empty'
import { TextInput } from '@/parts/form/Field'
import { JsonView } from '@/parts/json/JsonView'
import { Skeleton } from '@/parts/Loading'
import { StatusIcon } from '@/parts/Status'
import { Time } from '@/parts/Time'
import type { StateEntry } from './history'
import { useStateHistory } from './useStateHistory'

function EntryButton({ entry, selected, onSelect }: { entry: StateEntry; selected: boolean; onSelect: () => void }) {
  return (
    <button
      type="button"
      aria-pressed={selected}
      onClick={onSelect}
      className={cx('flex w-full items-center gap-2 px-3 py-1 text-left', selected ? 'bg-selected' : 'hover:bg-hover')}
    >
      <StatusIcon value={entry.outcome ?? 'done'} size={13} />
      <span className="min-w-0 flex-1 truncate">{entry.path}</span>
      <span className="max-w-32 truncate text-xs text-faint">{entry.changes.map((change) => change.key).join(', ')}</span>
    </button>
  )
}

export function StateTab({ run }: { run: Run }) {
  const history = useStateHistory(run)
  const address = useAddress()
  const [search, setSearch] = useState('')
  if (history.loading) return <Skeleton />
  if (history.entries.length === 0) {
    return (
      <Empty title="No step has ended yet">The state begins with the input. Each step that ends adds its output under its output key.</Empty>
    )
  }
  const wanted = search.toLowerCase()
  const shown = history.entries.filter((entry) => wanted === '' || entry.path.toLowerCase().includes(wanted) || entry.changes.some((change) => change.key.toLowerCase().includes(wanted)))
  const selected = history.entries.find((entry) => entry.path === address.get('step')) ?? history.entries.at(-1)!
  const last = selected === history.entries.at(-1)
  return (
    <div className="grid h-full min-h-0 md:grid-cols-[minmax(220px,320px)_1fr]">
      <div className="min-h-0 overflow-y-auto border-r border-line max-md:max-h-56 max-md:border-b">
        <div className="sticky top-0 border-b border-line bg-surface p-2">
          <TextInput type="search" aria-label="Search in steps and keys" placeholder="Step or key" value={search} onChange={(event) => setSearch(event.target.value)} />
        </div>
        {shown.map((entry) => (
          <EntryButton key={entry.path} entry={entry} selected={entry === selected} onSelect={() => address.set({ step: entry.path })} />
        ))}
        {history.more && <p className="px-3 py-2 text-xs text-soft">The first 1,000 steps are shown. The API has all of them.</p>}
      </div>
      <div className="flex min-h-0 min-w-0 flex-col gap-3 overflow-y-auto p-3">
        <h2 className="flex flex-wrap items-baseline gap-2 font-semibold">
          {selected.path} <span className="text-xs font-normal text-soft">{selected.kind}, <Time at={selected.at} /></span>
        </h2>
        {selected.changes.length === 0 ? (
          <p className="text-soft">This step wrote nothing into the state.</p>
        ) : (
          selected.changes.map((change) => (
            <section key={change.key} aria-label={`Change of ${change.key}`}>
              <h3 className="mb-1">
                <code className="font-mono text-xs">{change.key}</code> <span className="text-xs text-soft">{change.known ? 'changed' : 'added'}</span>
              </h3>
              <LineDiff before={change.before} after={change.after} label={`Change of ${change.key}`} />
            </section>
          ))
        )}
        <section>
          <h3 className="mb-1 font-medium">{last && run.state !== null ? 'State of the run' : 'State after this step'}</h3>
          <JsonView value={last && run.state !== null ? run.state : selected.state} label="the state" />
        </section>
      </div>
    </div>
  )
}
