/* The timeline: executions of steps as a tree, their time as bars, attempts as bands behind all. */
import { useVirtualizer } from '@tanstack/react-virtual'
import { useMemo, useRef, useState } from 'react'
import { hasSteps, type Run } from '@/api/types'
import { useAddress } from '@/app/address'
import { useNow } from '@/app/clock'
import { useMedia } from '@/app/media'
import { usePreference } from '@/app/preferences'
import { ButtonLink } from '@/parts/Button'
import { Empty } from '@/parts/Empty'
import { isEnded } from '@/text/status'
import type { RunStore } from '../model/store'
import { AttemptRow } from './AttemptRow'
import { Bands } from './Bands'
import { busyIntervals, PAGE, timelineRows } from './rows'
import { makeScale } from './scale'
import { SpanRowView } from './SpanRowView'
import { TimeAxis } from './TimeAxis'
import { TimelineTools } from './TimelineTools'
import { useTimelineKeys } from './useTimelineKeys'
import { useView } from './useView'

const ROW = 26

interface TimelineTabProps {
  run: Run
  store: RunStore
  selected: string | null
  onSelect: (span: string | null) => void
}

/** A task has no steps; what a reader looks for is in other tabs. */
function NoSteps({ run, loading }: { run: Run; loading: boolean }) {
  const address = useAddress()
  if (loading) return <Empty title="Loading the events" />
  if (hasSteps(run.target)) return <Empty title={isEnded(run.status) ? 'No step was executed' : 'No step has begun yet'}>Steps appear here as they begin.</Empty>
  const tabs: [string, string][] = [['logs', 'Log lines'], ['io', 'Input and result'], ['attempts', 'Attempts'], ['events', 'Events']]
  return (
    <Empty title="A task has no steps" actions={tabs.map(([tab, label]) => <ButtonLink key={tab} small to={address.link({ tab })}>{label}</ButtonLink>)}>
      It is executed as a whole. The bar above shows its attempts.
    </Empty>
  )
}

export function TimelineTab({ run, store, selected, onSelect }: TimelineTabProps) {
  const { model, version } = store
  const open = !isEnded(run.status)
  const now = useNow(open)
  const scroller = useRef<HTMLDivElement>(null)
  const narrow = useMedia('(max-width: 819px)')
  const [collapse, setCollapse] = usePreference('timeline.collapse', true)
  const [hideDone, setHideDone] = useState(false)
  const [follow, setFollow] = useState(false)
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set())
  const [more, setMore] = useState<ReadonlyMap<string, number>>(new Map())
  // The model changes in place; its version says when.
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const rows = useMemo(() => timelineRows(model, { toggled, more, hideDone }), [version, toggled, more, hideDone])
  const end = open ? now : Date.parse(run.ended_at ?? run.accepted_at)
  const start = Date.parse(run.accepted_at)
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const scale = useMemo(() => makeScale({ start, end: Math.max(end, start + 1) }, busyIntervals(model, end), collapse), [version, start, end, collapse])
  const view = useView(scroller, scale, start)
  const virtualizer = useVirtualizer({ count: rows.length, getScrollElement: () => scroller.current, estimateSize: () => ROW, overscan: 20 })

  const toggle = (id: string) => {
    // The children of a long run are read when they are unfolded.
    if (model.spans.get(id)?.hidden !== undefined) void store.expand(id)
    const next = new Set(toggled)
    if (!next.delete(id)) next.add(id)
    setToggled(next)
  }
  const showMore = (id: string) => {
    const shown = (more.get(id) ?? 0) + PAGE
    const span = model.spans.get(id)
    setMore(new Map(more).set(id, shown))
    if (span?.rest !== undefined && span.children.length <= shown + PAGE) void store.expand(id)
  }
  const keys = useTimelineKeys({ rows, selected, onSelect, toggle, show: (index) => virtualizer.scrollToIndex(index) })
  const lastRow = rows.length - 1
  const followed = useRef(-1)
  if (follow && followed.current !== lastRow) {
    followed.current = lastRow
    queueMicrotask(() => virtualizer.scrollToIndex(lastRow))
  }
  const template = narrow ? 'minmax(120px, 45%) minmax(0, 1fr) 64px' : 'minmax(180px, 300px) minmax(0, 1fr) 76px 72px 64px'

  return (
    <div className="flex h-full min-h-0 flex-col">
      <TimelineTools
        view={view}
        collapse={collapse}
        onCollapse={setCollapse}
        hideDone={hideDone}
        onHideDone={setHideDone}
        follow={follow}
        onFollow={open ? setFollow : undefined}
      />
      <TimeAxis scale={scale} view={view} template={template} narrow={narrow} start={start} />
      <AttemptRow model={model} run={run} scale={scale} view={view} template={template} now={end} />
      <div
        ref={scroller}
        role="treegrid"
        aria-label="Steps of the run"
        aria-rowcount={rows.length}
        tabIndex={0}
        onKeyDown={keys}
        className="relative min-h-0 flex-1 overflow-x-hidden overflow-y-auto"
      >
        {rows.length === 0 ? (
          <NoSteps run={run} loading={store.loading} />
        ) : (
          <div role="rowgroup" style={{ height: virtualizer.getTotalSize(), position: 'relative' }}>
            <Bands scale={scale} view={view} template={template} narrow={narrow} />
            {virtualizer.getVirtualItems().map((item) => (
              <SpanRowView
                key={item.key}
                row={rows[item.index]!}
                index={item.index}
                top={item.start}
                template={template}
                narrow={narrow}
                scale={scale}
                view={view}
                now={end}
                selected={selected}
                onSelect={onSelect}
                onToggle={toggle}
                onMore={showMore}
              />
            ))}
          </div>
        )}
      </div>
    </div>
  )
}
