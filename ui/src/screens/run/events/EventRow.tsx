/* One event: number, time, attempt, type, path and a line about it; its JSON when it is opened. */
import { ChevronRight } from 'lucide-react'
import { memo, type Ref } from 'react'
import { visible } from '@/format/text'
import { cx } from '@/parts/classes'
import { JsonView } from '@/parts/json/JsonView'
import { Time } from '@/parts/Time'
import type { RunEvent } from '../model/types'
import { summaryOf } from './summary'

const BAD = new Set(['step_error', 'attempt_failed', 'worker_lost'])

interface EventRowProps {
  /** Only opened rows are measured; the others have a known height. */
  ref: Ref<HTMLDivElement> | undefined
  index: number
  top: number
  event: RunEvent
  open: boolean
  onToggle: (seq: number) => void
}

export const EventRow = memo(function EventRow({ ref, index, top, event, open, onToggle }: EventRowProps) {
  return (
    <div ref={ref} role="listitem" data-index={index} data-seq={event.seq} style={{ position: 'absolute', top: 0, left: 0, right: 0, transform: `translateY(${top}px)` }} className="border-b border-line">
      <button type="button" aria-expanded={open} onClick={() => onToggle(event.seq!)} className="flex min-h-[25px] w-full min-w-0 items-center gap-2 px-2 text-left hover:bg-hover">
        <ChevronRight size={13} aria-hidden className={cx('shrink-0 text-faint', open && 'rotate-90')} />
        <span className="tabular w-10 shrink-0 text-right text-xs text-faint">{event.seq}</span>
        <span className="w-16 shrink-0 text-xs text-soft max-sm:hidden">
          <Time at={event.at} />
        </span>
        <span className="tabular w-5 shrink-0 text-center text-2xs text-faint" title={`Attempt ${event.attempt}`}>
          {event.attempt}
        </span>
        <code className={cx('w-40 shrink-0 truncate font-mono text-xs max-sm:w-28', BAD.has(event.type) && 'text-bad')}>{event.type}</code>
        {typeof event.path === 'string' && <code className="max-w-48 shrink-0 truncate font-mono text-xs text-accent max-md:hidden">{visible(event.path)}</code>}
        <span className="min-w-0 flex-1 truncate text-soft">{summaryOf(event)}</span>
      </button>
      {open && (
        <div className="border-t border-line bg-canvas py-1.5 pr-2 pl-9">
          <JsonView value={event} label={`event ${event.seq}`} openDepth={2} />
        </div>
      )}
    </div>
  )
})
