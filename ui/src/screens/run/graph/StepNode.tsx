/* A step on the graph. Its size is fixed, so the layout never changes; its state is a class. */
import type { Node, NodeProps } from '@xyflow/react'
import { ArrowRight, Maximize2, Minimize2 } from 'lucide-react'
import { memo } from 'react'
import { Link } from 'wouter'
import { formatCost } from '@/format/number'
import { visible } from '@/format/text'
import { cx } from '@/parts/classes'
import { StatusIcon } from '@/parts/Status'
import { STEP_ICONS } from '@/parts/stepIcons'
import { statusText, type Tone } from '@/text/status'
import type { InnerLink } from './GraphCanvas'
import { shownOutcome, useSelected, useStanding } from './standings'

export interface StepData extends Record<string, unknown> {
  name: string
  type: string
  container: boolean
  /** The graph shows a definition, not a run, so no step is pending. */
  plain: boolean
  inner: InnerLink | null
}

const BORDERS: Record<Tone, string> = {
  ok: 'border-ok',
  bad: 'border-bad border-2',
  busy: 'border-busy border-2',
  wait: 'border-wait',
  person: 'border-person border-2',
  idle: 'border-idle',
}

/** Where edges end. Plain elements: the library reads their places, and nothing can be connected. */
function Ends() {
  return (
    <>
      <span aria-hidden data-handlepos="top" className="target pointer-events-none absolute top-0 left-1/2 size-0" />
      <span aria-hidden data-handlepos="bottom" className="source pointer-events-none absolute bottom-0 left-1/2 size-0" />
    </>
  )
}

function Inner({ link, name }: { link: InnerLink; name: string }) {
  const Icon = !link.here ? ArrowRight : link.label === 'open' ? Maximize2 : Minimize2
  return (
    <Link href={link.href} className="nodrag ml-auto flex min-h-4 shrink-0 items-center gap-0.5 text-2xs text-accent" title={`${link.label === 'open' ? 'Open' : 'Close'} the inner orchestration of ${name}`}>
      {link.label} <Icon size={11} aria-hidden />
    </Link>
  )
}

export const StepNode = memo(function StepNode({ id, data }: NodeProps<Node<StepData>>) {
  const standing = useStanding(id)
  const selected = useSelected(id)
  const outcome = shownOutcome(standing)
  const tone = outcome === null ? null : statusText(outcome).tone
  const Icon = STEP_ICONS[data.type]
  return (
    <div
      data-step={id}
      data-outcome={outcome ?? 'pending'}
      className={cx(
        'flex h-full w-full flex-col rounded-md border px-2 py-1 text-left',
        data.container ? 'bg-[color-mix(in_srgb,var(--sunken)_55%,transparent)]' : 'justify-center bg-raised',
        tone !== null ? BORDERS[tone] : data.plain ? 'border-idle' : 'border-dashed border-idle text-soft',
        selected && 'outline-2 outline-offset-2 outline-focus',
      )}
    >
      <Ends />
      <div className="flex min-w-0 items-center gap-1.5">
        {Icon !== undefined && <Icon size={14} aria-label={data.type} className="shrink-0 text-faint" />}
        <span className="min-w-0 flex-1 truncate font-medium" title={`${data.name} (${data.type})`}>
          {visible(data.name)}
        </span>
        {data.container && standing !== undefined && standing.executions > 1 && <span className="tabular text-2xs text-faint">{standing.executions}×</span>}
        {outcome !== null && <StatusIcon value={outcome} size={13} />}
        {data.container && data.inner !== null && <Inner link={data.inner} name={data.name} />}
      </div>
      {!data.container && (
        <div className="flex items-center gap-2 text-2xs text-faint">
          <span className="truncate">{data.type.replaceAll('_', ' ')}</span>
          {standing !== undefined && standing.executions > 1 && <span className="tabular">{standing.executions}×</span>}
          {standing !== undefined && standing.tries > 0 && <span className="text-wait">{standing.tries} failed</span>}
          {standing?.cost_usd != null && <span className="tabular">{formatCost(standing.cost_usd)}</span>}
          {data.inner !== null && <Inner link={data.inner} name={data.name} />}
        </div>
      )}
    </div>
  )
})

export const EndNode = memo(function EndNode() {
  return (
    <div className="flex h-full w-full items-center justify-center rounded-full border border-line-strong bg-sunken text-2xs text-soft">
      <Ends />
      end
    </div>
  )
})
