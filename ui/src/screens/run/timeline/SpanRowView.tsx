/* One execution: its name in the tree, its bar, and what it took. */
import { ChevronRight } from 'lucide-react'
import { formatDuration, formatTicking } from '@/format/duration'
import { formatCost, formatShort, plural } from '@/format/number'
import { oneLine } from '@/format/text'
import { cx, TONE_FILL } from '@/parts/classes'
import { StatusIcon } from '@/parts/Status'
import { STEP_ICONS } from '@/parts/stepIcons'
import { statusText } from '@/text/status'
import type { Span } from '../model/types'
import type { TimelineRow } from './rows'
import type { Scale } from './scale'
import type { View } from './useView'

interface SpanRowProps {
  row: TimelineRow
  index: number
  top: number
  template: string
  narrow: boolean
  scale: Scale
  view: View
  now: number
  selected: string | null
  onSelect: (id: string) => void
  onToggle: (id: string) => void
  onMore: (id: string) => void
}

function Bar({ span, scale, view, now }: { span: Span; scale: Scale; view: View; now: number }) {
  const { tone, word } = statusText(span.outcome)
  const left = view.place(scale.x(span.start))
  const right = view.place(scale.x(span.end ?? now))
  if (right < 0 || left > 1) return null
  const group = span.kind === 'group' || span.kind === 'part'
  return (
    <span
      title={`${span.name}: ${word}`}
      className={cx(
        'absolute min-w-[3px] rounded-xs',
        group ? 'top-[11px] h-1 opacity-45' : 'top-[7px] h-3',
        span.outcome === 'waiting' ? 'border border-dashed border-person bg-person-soft' : TONE_FILL[tone],
        span.kind === 'model' && 'opacity-60',
      )}
      style={{ left: `min(${left * 100}%, 100% - 3px)`, width: `max(3px, ${(right - left) * 100}%)` }}
    />
  )
}

function summaryText(counts: Record<string, number>): string {
  return Object.entries(counts)
    .map(([outcome, count]) => `${count} ${statusText(outcome).word}`)
    .join(', ')
}

export function SpanRowView({ row, index, top, template, narrow, scale, view, now, selected, onSelect, onToggle, onMore }: SpanRowProps) {
  const place = { position: 'absolute', top: 0, left: 0, right: 0, height: 26, transform: `translateY(${top}px)` } as const
  const indent = { paddingLeft: 8 + row.depth * 14 }
  if (row.kind === 'more') {
    return (
      <div role="row" aria-rowindex={index + 1} style={{ ...place, ...indent }} className="flex items-center">
        <button role="gridcell" type="button" className="text-accent underline" onClick={() => onMore(row.parent)}>
          {plural(row.hidden, 'more', 'more')}
        </button>
      </div>
    )
  }
  const { span } = row
  const Icon = STEP_ICONS[span.type]
  const seconds = span.end === null ? Math.max(0, (now - span.start) / 1_000) : (span.end - span.start) / 1_000
  const isSelected = selected === span.id
  return (
    <div
      role="row"
      aria-rowindex={index + 1}
      aria-level={row.depth + 1}
      aria-expanded={row.foldable ? !row.folded : undefined}
      aria-selected={isSelected}
      data-span={span.id}
      data-outcome={span.outcome}
      style={{ ...place, gridTemplateColumns: template }}
      onClick={() => onSelect(span.id)}
      className={cx('grid cursor-pointer items-center', isSelected ? 'bg-selected' : 'hover:bg-hover')}
    >
      <div role="gridcell" style={indent} className="flex min-w-0 items-center gap-1">
        {row.foldable ? (
          <button
            type="button"
            tabIndex={-1}
            aria-label={row.folded ? 'Unfold' : 'Fold'}
            onClick={(event) => {
              event.stopPropagation()
              onToggle(span.id)
            }}
            className="flex size-5 shrink-0 items-center justify-center rounded-sm text-faint hover:bg-sunken"
          >
            <ChevronRight size={14} aria-hidden className={row.folded ? undefined : 'rotate-90'} />
          </button>
        ) : (
          <span className="w-5 shrink-0" />
        )}
        <StatusIcon value={span.outcome} size={13} />
        {Icon !== undefined && <Icon size={13} aria-hidden className="shrink-0 text-faint" />}
        <span className={cx('truncate', span.kind === 'step' || span.kind === 'group' ? undefined : 'text-soft')} title={span.name}>
          {oneLine(span.name, 120)}
        </span>
        {span.tries > 0 && <span className="shrink-0 rounded-sm bg-wait-soft px-1 text-2xs text-wait">{span.tries + 1} tries</span>}
        {row.summary !== null && <span className="truncate text-xs text-faint">{summaryText(row.summary)}</span>}
      </div>
      <div role="gridcell" className="relative h-full overflow-hidden">
        <Bar span={span} scale={scale} view={view} now={now} />
      </div>
      <div role="gridcell" className="tabular px-2 text-right text-xs text-soft">
        {span.end === null ? formatTicking(seconds) : formatDuration(span.seconds !== null && span.type !== 'human' ? span.seconds : seconds)}
      </div>
      {!narrow && <div role="gridcell" className="tabular px-2 text-right text-xs text-soft">{span.cost === null ? '' : formatCost(span.cost)}</div>}
      {!narrow && <div role="gridcell" className="tabular px-2 text-right text-xs text-soft">{span.tokens === null || span.tokens === 0 ? '' : formatShort(span.tokens)}</div>}
    </div>
  )
}
