/* JSON as a tree that builds its rows lazily, with search and copy. Values are text nodes. */
import { useVirtualizer } from '@tanstack/react-virtual'
import { ArrowDownAZ, Search } from 'lucide-react'
import { useMemo, useRef, useState } from 'react'
import { formatJson } from '@/api/json'
import { formatBytes, plural } from '@/format/number'
import { IconButton } from '../Button'
import { CopyIconButton } from '../Copy'
import { JsonRowView } from './JsonRowView'
import { ancestors, findPaths, isContainer, keysOf, rowsOf, type Shape } from './rows'

const ROW = 20
const VIRTUAL_FROM = 150
const TREE_LIMIT = 5_000_000

interface JsonViewProps {
  value: unknown
  label: string
  openDepth?: number
  /** Without the tools, for a value inside a row. */
  bare?: boolean
  /** What the entry at a path means. */
  describe?: (path: (string | number)[]) => string | undefined
}

function useShape(value: unknown, openDepth: number) {
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set())
  const [more, setMore] = useState<ReadonlyMap<string, number>>(new Map())
  const [sorted, setSorted] = useState(false)
  const shape: Shape = { toggled, openDepth, more, sorted }
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const rows = useMemo(() => rowsOf(value, shape), [value, toggled, more, sorted, openDepth])
  const toggle = (path: string) => {
    const next = new Set(toggled)
    if (!next.delete(path)) next.add(path)
    setToggled(next)
  }
  const reveal = (path: string) => {
    const next = new Set(toggled)
    for (const [depth, above] of ancestors(path).entries()) if (depth >= openDepth) next.add(above)
    setToggled(next)
  }
  const extend = (path: string, by: number) => setMore(new Map(more).set(path, (more.get(path) ?? 0) + by))
  return { rows, toggle, reveal, extend, sorted, setSorted }
}

export function JsonView({ value, label, openDepth = 2, bare = false, describe }: JsonViewProps) {
  const { rows, toggle, reveal, extend, sorted, setSorted } = useShape(value, openDepth)
  const [searching, setSearching] = useState(false)
  const [text, setText] = useState('')
  const [found, setFound] = useState<string | null>(null)
  const scroller = useRef<HTMLDivElement>(null)
  const virtual = rows.length > VIRTUAL_FROM
  const virtualizer = useVirtualizer({
    count: virtual ? rows.length : 0,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 20,
  })
  const hits = useMemo(() => (text.length < 2 ? null : findPaths(value, text)), [value, text])

  const goTo = (step: number) => {
    if (hits === null || hits.paths.length === 0) return
    const at = found === null ? (step > 0 ? 0 : -1) : hits.paths.indexOf(found) + step
    const path = hits.paths[(at + hits.paths.length) % hits.paths.length]!
    reveal(path)
    setFound(path)
    requestAnimationFrame(() => scroller.current?.querySelector('[data-found]')?.scrollIntoView({ block: 'nearest' }))
  }
  const view = (index: number) => {
    const row = rows[index]!
    return <JsonRowView key={`${row.path}:${row.hidden ?? ''}`} row={row} found={row.path === found && row.hidden === undefined} about={row.path === '' ? undefined : describe?.(keysOf(row.path))} onToggle={toggle} onMore={extend} />
  }
  return (
    <div className="min-w-0">
      {!bare && (isContainer(value) || typeof value === 'string') && (
        <div className="mb-1 flex flex-wrap items-center gap-0.5 text-xs text-faint">
          <span className="mr-auto">{isContainer(value) ? plural(Object.keys(value).length, 'entry', 'entries') : formatBytes(String(value).length)}</span>
          {searching && (
            <>
              <input
                autoFocus
                type="search"
                aria-label={`Search in ${label}`}
                placeholder="Key or value"
                value={text}
                onChange={(event) => setText(event.target.value)}
                onKeyDown={(event) => {
                  if (event.key === 'Enter') goTo(event.shiftKey ? -1 : 1)
                  if (event.key === 'Escape') setSearching(false)
                }}
                className="h-6 w-36 rounded-sm border border-line-strong bg-surface px-1.5 text-ink"
              />
              <span className="px-1">
                {hits === null ? '' : `${hits.paths.length}${hits.complete ? '' : '+'} found`}
              </span>
            </>
          )}
          {isContainer(value) && <IconButton label={`Search in ${label}`} icon={Search} onClick={() => setSearching(!searching)} className="size-6" />}
          {isContainer(value) && <IconButton label={sorted ? 'Keys in their own order' : 'Sort keys'} aria-pressed={sorted} icon={ArrowDownAZ} onClick={() => setSorted(!sorted)} className="size-6" />}
          <CopyIconButton text={() => (typeof value === 'string' ? value : formatJson(value))} label={`Copy ${label}`} />
        </div>
      )}
      <div ref={scroller} role="tree" aria-label={label} tabIndex={0} className={virtual ? 'max-h-[60vh] overflow-auto' : 'overflow-x-auto'}>
        {virtual ? (
          <div style={{ height: virtualizer.getTotalSize(), position: 'relative' }}>
            {virtualizer.getVirtualItems().map((item) => (
              <div key={item.key} ref={virtualizer.measureElement} data-index={item.index} style={{ position: 'absolute', top: 0, left: 0, right: 0, transform: `translateY(${item.start}px)` }}>
                {view(item.index)}
              </div>
            ))}
          </div>
        ) : (
          rows.map((_row, index) => view(index))
        )}
      </div>
    </div>
  )
}

/** A value of unknown size: a tree, or its text when a tree would be too much. */
export function JsonText({ text, label }: { text: string; label: string }) {
  return (
    <pre aria-label={label} className="max-h-[60vh] overflow-auto font-mono text-xs whitespace-pre-wrap">
      {text.length > TREE_LIMIT ? text.slice(0, TREE_LIMIT) : text}
    </pre>
  )
}
