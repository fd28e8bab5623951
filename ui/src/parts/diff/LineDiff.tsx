/* A diff of two strings or JSON values, with unchanged parts folded. */
import { useMemo, useState } from 'react'
import { formatJson } from '@/api/json'
import { visible } from '@/format/text'
import { cx } from '../classes'
import { type DiffLine, diffLines } from './lines'

const CONTEXT = 3
const MARKS = { same: ' ', removed: '-', added: '+' }
const LOOKS = { same: 'text-soft', removed: 'bg-bad-soft text-bad', added: 'bg-ok-soft text-ok' }

interface Part {
  lines: DiffLine[]
  hidden: boolean
}

/** Runs of equal lines, except those next to a change, are hidden. */
export function foldSame(lines: DiffLine[]): Part[] {
  const near = lines.map((_line, index) => lines.slice(Math.max(0, index - CONTEXT), index + CONTEXT + 1).some((line) => line.kind !== 'same'))
  const parts: Part[] = []
  lines.forEach((line, index) => {
    const hidden = !near[index]
    const last = parts.at(-1)
    if (last !== undefined && last.hidden === hidden) last.lines.push(line)
    else parts.push({ lines: [line], hidden })
  })
  return parts
}

function Hidden({ lines }: { lines: DiffLine[] }) {
  const [open, setOpen] = useState(false)
  if (open) return <Lines lines={lines} />
  return (
    <button type="button" onClick={() => setOpen(true)} className="block w-full bg-sunken px-2 text-left text-faint">
      {lines.length} equal lines
    </button>
  )
}

function Lines({ lines }: { lines: DiffLine[] }) {
  return lines.map((line, index) => (
    <div key={index} className={cx('flex', LOOKS[line.kind])}>
      <span aria-hidden className="w-5 shrink-0 text-center select-none">
        {MARKS[line.kind]}
      </span>
      <span className="min-w-0 break-words whitespace-pre-wrap">
        {line.kind !== 'same' && <span className="sr-only">{line.kind} </span>}
        {visible(line.text)}
      </span>
    </div>
  ))
}

function textOf(value: unknown): string {
  if (value === undefined) return ''
  return typeof value === 'string' ? value : formatJson(value)
}

export function LineDiff({ before, after, label }: { before: unknown; after: unknown; label: string }) {
  const parts = useMemo(() => foldSame(diffLines(textOf(before), textOf(after))), [before, after])
  const equal = parts.every((part) => part.hidden)
  return (
    <div role="group" aria-label={label} className="max-h-[60vh] overflow-auto rounded-md border border-line font-mono text-xs leading-5">
      {equal ? <p className="px-2 py-1 font-sans text-soft">No difference.</p> : parts.map((part, index) => (part.hidden ? <Hidden key={index} lines={part.lines} /> : <Lines key={index} lines={part.lines} />))}
    </div>
  )
}
