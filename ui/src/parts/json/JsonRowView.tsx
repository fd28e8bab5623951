/* One row of a JSON tree. */
import { ChevronRight } from 'lucide-react'
import { useState } from 'react'
import { apiUrl } from '@/api/client'
import { ExactNumber, formatJson } from '@/api/json'
import { formatBytes, plural } from '@/format/number'
import { visible } from '@/format/text'
import { cx } from '../classes'
import { CopyIconButton } from '../Copy'
import type { JsonRow } from './rows'

const LONG = 600

function LongString({ text }: { text: string }) {
  const [open, setOpen] = useState(false)
  const cut = !open && text.length > LONG
  return (
    <>
      <span className="break-words whitespace-pre-wrap text-ok">"{visible(cut ? text.slice(0, LONG) : text)}"</span>
      {text.length > LONG && (
        <button type="button" className="ml-1 text-accent underline" onClick={() => setOpen(!open)}>
          {open ? 'less' : `all ${formatBytes(text.length)}`}
        </button>
      )}
    </>
  )
}

/** A value that the server has cut. The address counts only if it is one of this API: anyone can write such an object. */
function cutOf(value: unknown): { bytes: number; href: string } | null {
  const { $cut: bytes, href } = (typeof value === 'object' && value !== null ? value : {}) as { $cut?: unknown; href?: unknown }
  if (typeof bytes !== 'number' || typeof href !== 'string' || !/^\/api\/v2\/runs\/run_[0-9a-f]+\/values\//.test(href)) return null
  return { bytes, href: apiUrl(href) }
}

export function Scalar({ value }: { value: unknown }) {
  if (typeof value === 'string') return <LongString text={value} />
  if (typeof value === 'number' || value instanceof ExactNumber) return <span className="tabular text-busy">{String(value)}</span>
  if (typeof value === 'boolean') return <span className="text-person">{String(value)}</span>
  if (value === null || value === undefined) return <span className="text-faint">null</span>
  return <span>{visible(String(value))}</span>
}

interface RowProps {
  row: JsonRow
  found: boolean
  /** What the entry means. */
  about?: string
  onToggle: (path: string) => void
  onMore: (path: string, by: number) => void
}

export function JsonRowView({ row, found, about, onToggle, onMore }: RowProps) {
  const indent = { paddingLeft: row.depth * 14 + (row.size === null ? 16 : 0) }
  if (row.hidden !== undefined) {
    return (
      <div style={indent} className="font-mono text-xs leading-5">
        <button type="button" className="text-accent underline" onClick={() => onMore(row.path, 200)}>
          {plural(row.hidden, 'more entry', 'more entries')}
        </button>
      </div>
    )
  }
  const name = row.key === null ? null : <span className="text-soft">{typeof row.key === 'number' ? row.key : visible(row.key)}: </span>
  const cut = cutOf(row.value)
  if (cut !== null) {
    return (
      <div style={indent} className="font-mono text-xs leading-5">
        {name}
        <a href={cut.href} download className="text-accent underline">
          {formatBytes(cut.bytes)}, download
        </a>
      </div>
    )
  }
  const brackets = Array.isArray(row.value) ? ['[', ']'] : ['{', '}']
  return (
    <div
      role="treeitem"
      aria-level={row.depth + 1}
      aria-expanded={row.size === null ? undefined : row.open}
      data-found={found || undefined}
      style={indent}
      className={cx('group flex min-w-0 items-start font-mono text-xs leading-5', found && 'bg-wait-soft')}
    >
      {row.size === null ? (
        <span className={about === undefined ? 'min-w-0' : 'max-w-2/3 min-w-0 shrink-0'}>
          {name}
          <Scalar value={row.value} />
        </span>
      ) : (
        <button type="button" disabled={row.size === 0} onClick={() => onToggle(row.path)} className="flex min-w-0 items-start text-left">
          <ChevronRight size={14} aria-hidden className={cx('mt-[3px] mr-0.5 shrink-0 text-faint', row.open && 'rotate-90', row.size === 0 && 'opacity-0')} />
          <span>
            {name}
            <span className="text-faint">
              {row.size === 0 ? brackets.join('') : row.open ? brackets[0] : `${brackets[0]} ${row.size} ${brackets[1]}`}
            </span>
          </span>
        </button>
      )}
      {about !== undefined && (
        <span title={about} className="ml-4 min-w-0 flex-1 truncate font-sans text-faint max-md:hidden">
          {about}
        </span>
      )}
      <span className="ml-1 hidden h-5 items-center group-focus-within:inline-flex group-hover:inline-flex">
        {row.path !== '' && <CopyIconButton text={row.path} label="Copy the path" />}
        <CopyIconButton text={() => (typeof row.value === 'string' ? row.value : formatJson(row.value))} label="Copy the value" />
      </span>
    </div>
  )
}
