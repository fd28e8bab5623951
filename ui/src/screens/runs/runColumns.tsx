/* The columns of the list of runs. */
import { Bot, Braces, Network, Workflow } from 'lucide-react'
import { type RunSummary, targetParts } from '@/api/types'
import { formatCost, formatShort } from '@/format/number'
import { oneLine, shortId, visible } from '@/format/text'
import { Status } from '@/parts/Status'
import type { Column } from '@/parts/table/columns'
import { Elapsed, Time } from '@/parts/Time'
import { isEnded } from '@/text/status'

const KIND_ICONS = { task: Braces, orchestration: Workflow, agent: Bot, graph: Network }

export function Target({ target }: { target: string }) {
  const { kind, name } = targetParts(target)
  const Icon = KIND_ICONS[kind]
  return (
    <span className="inline-flex max-w-full min-w-0 items-center gap-1.5" title={target}>
      <Icon size={14} role="img" aria-label={kind} className="shrink-0 text-faint" />
      <span className="truncate font-medium">{visible(name)}</span>
    </span>
  )
}

export function Tag({ name }: { name: string }) {
  return <span className="mr-1 inline-block max-w-40 min-w-0 truncate rounded-sm bg-sunken px-1 align-bottom text-xs text-soft">{visible(name)}</span>
}

/** The first tag whole, and how many more there are where there is no room for them. */
function Tags({ tags }: { tags: string[] }) {
  const [first, ...more] = tags
  if (first === undefined) return null
  return (
    <span className="@container flex min-w-0 items-center" title={tags.map(visible).join(', ')}>
      <Tag name={first} />
      {more.length > 0 && <span className="shrink-0 text-xs text-faint @min-[200px]:hidden">+{more.length}</span>}
      <span className="hidden min-w-0 truncate @min-[200px]:inline">{more.map((tag) => <Tag key={tag} name={tag} />)}</span>
    </span>
  )
}

function Progress({ run }: { run: RunSummary }) {
  // The progress of a run that has ended says nothing that its status does not.
  if (isEnded(run.status) || (run.progress === null && run.progress_note === null)) return null
  const share = Math.round((run.progress ?? 0) * 100)
  return (
    <span className="flex items-center gap-1.5" title={run.progress_note ?? undefined}>
      {run.progress !== null && (
        <span role="progressbar" aria-valuenow={share} aria-valuemin={0} aria-valuemax={100} aria-label="Progress" className="h-1.5 w-14 shrink-0 overflow-hidden rounded-full bg-sunken">
          <span className="block h-full bg-accent" style={{ width: `${share}%` }} />
        </span>
      )}
      <span className="truncate text-xs text-soft">{run.progress_note === null ? `${share}%` : oneLine(run.progress_note, 60)}</span>
    </span>
  )
}

export const RUN_COLUMNS: Column<RunSummary>[] = [
  { id: 'target', title: 'Target', width: 150, grow: 3, fixed: true, render: (run) => <Target target={run.target} /> },
  { id: 'status', title: 'Status', width: 148, fixed: true, render: (run) => <Status value={run.cancel_requested_at !== null && !isEnded(run.status) ? 'cancelling' : run.status} /> },
  { id: 'id', title: 'Run', width: 80, render: (run) => <code title={run.run_id} className="font-mono text-xs text-soft">{shortId(run.run_id)}</code> },
  { id: 'accepted', title: 'Accepted', width: 76, render: (run) => <Time at={run.accepted_at} style="relative" /> },
  { id: 'started', title: 'Started', width: 76, wideOnly: true, render: (run) => <Time at={run.started_at} style="relative" /> },
  { id: 'duration', title: 'Duration', width: 72, align: 'right', render: (run) => <Elapsed from={run.started_at} to={run.ended_at} running={!isEnded(run.status)} /> },
  { id: 'waited', title: 'Waited', width: 88, align: 'right', optional: true, render: (run) => <Elapsed from={run.accepted_at} to={run.started_at ?? run.ended_at} running={!isEnded(run.status)} /> },
  { id: 'lane', title: 'Lane', width: 76, wideOnly: true, render: (run) => <span className="text-soft">{run.lane}</span> },
  { id: 'tries', title: 'Tries', width: 46, align: 'right', wideOnly: true, render: (run) => <span className={run.tries > 1 ? 'tabular text-wait' : 'tabular text-faint'}>{run.tries}</span> },
  { id: 'cost', title: 'Cost', width: 66, align: 'right', wideOnly: true, render: (run) => <span className="tabular text-soft">{formatCost(run.total_cost_usd)}</span> },
  { id: 'tokens', title: 'Tokens', width: 72, align: 'right', optional: true, render: (run) => <span className="tabular text-soft">{formatShort(run.total_tokens)}</span> },
  { id: 'key', title: 'Key', width: 120, optional: true, render: (run) => <span className="text-soft">{run.ordering_key === null ? '' : visible(run.ordering_key)}</span> },
  { id: 'progress', title: 'Progress', width: 100, grow: 2, wideOnly: true, render: (run) => <Progress run={run} /> },
  { id: 'tags', title: 'Tags', width: 100, grow: 2, wideOnly: true, render: (run) => <Tags tags={run.tags} /> },
  { id: 'tenant', title: 'Tenant', width: 110, optional: true, render: (run) => <span className="text-soft">{run.tenant}</span> },
  { id: 'priority', title: 'Priority', width: 64, align: 'right', optional: true, render: (run) => <span className="tabular text-soft">{run.priority}</span> },
  { id: 'worker', title: 'Worker', width: 100, optional: true, render: (run) => <code className="font-mono text-xs text-soft">{run.worker_id === null ? '' : shortId(run.worker_id)}</code> },
  { id: 'ended', title: 'Ended', width: 104, optional: true, render: (run) => <Time at={run.ended_at} style="relative" /> },
]
