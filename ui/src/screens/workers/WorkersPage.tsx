/* Workers: what each executes, since when, and with which version. */
import { Server } from 'lucide-react'
import { useApi } from '@/api/query'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { oneLine, shortId } from '@/format/text'
import { serverNow } from '@/format/time'
import { ActionButton, ActionMenu } from '@/parts/action/ActionButtons'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Check, Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Meter } from '@/parts/Meter'
import { Page, PageHeader } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Time } from '@/parts/Time'
import { cpuOf, drainAction, drainVersionAction, Heartbeat, isGone, lanesOf, memoryOf, type Worker, WorkerStatus } from './worker'
import { WorkerDialog } from './WorkerDialog'

const COLUMNS: Column<Worker>[] = [
  { id: 'id', title: 'Worker', width: 88, fixed: true, render: (worker) => <code title={worker.worker_id} className="font-mono text-xs">{shortId(worker.worker_id)}</code> },
  { id: 'status', title: 'Status', width: 128, render: (worker) => <WorkerStatus worker={worker} /> },
  { id: 'host', title: 'Host', width: 140, grow: true, render: (worker) => <span className="text-soft">{worker.hostname ?? '–'}{worker.pid === null ? '' : ` (${worker.pid})`}</span> },
  { id: 'slots', title: 'Slots', width: 132, render: (worker) => <Meter label={`Slots of ${worker.worker_id}`} value={worker.active_jobs} max={worker.max_jobs} tone={worker.active_jobs >= worker.max_jobs ? 'wait' : 'busy'} /> },
  { id: 'heartbeat', title: 'Heartbeat', width: 92, render: (worker) => <Heartbeat worker={worker} /> },
  { id: 'memory', title: 'Memory', width: 84, align: 'right', wideOnly: true, render: (worker) => <span className="tabular text-soft">{memoryOf(worker)}</span> },
  { id: 'cpu', title: 'CPU', width: 64, align: 'right', wideOnly: true, render: (worker) => <span className="tabular text-soft" title="Processor time between its last two heartbeats; 100% is one core">{cpuOf(worker)}</span> },
  { id: 'version', title: 'Version', width: 72, render: (worker) => <span className="text-soft">{worker.version}</span> },
  { id: 'lanes', title: 'Lanes', width: 90, wideOnly: true, render: (worker) => <span className="text-soft">{oneLine(lanesOf(worker), 60)}</span> },
  { id: 'kinds', title: 'Kinds', width: 150, optional: true, render: (worker) => <span className="text-soft" title={worker.targets?.join(', ')}>{worker.targets === null ? 'not reported' : oneLine(worker.targets.join(', '), 60)}</span> },
  { id: 'since', title: 'Up since', width: 88, wideOnly: true, render: (worker) => <Time at={worker.started_at} style="relative" /> },
]

function groupKey(worker: Worker, group: string): string {
  return group === 'version' ? worker.version : (worker.hostname ?? 'unknown host')
}

function Groups({ workers, group, manage }: { workers: Worker[]; group: string; manage: boolean }) {
  const groups = new Map<string, Worker[]>()
  const live = workers.filter((candidate) => !isGone(candidate))
  for (const worker of live) {
    const key = groupKey(worker, group)
    groups.set(key, [...(groups.get(key) ?? []), worker])
  }
  return (
    <ul aria-label={`Workers by ${group}`} className="flex flex-wrap gap-2">
      {[...groups].map(([key, members]) => (
        <li key={key} className="rounded-md border border-line bg-surface px-3 py-1.5">
          <p className="text-2xs text-faint">{key}</p>
          <p className="flex items-center gap-3">{plural(members.length, 'worker')} <Meter label={`Slots of ${key}`} value={members.reduce((sum, worker) => sum + worker.active_jobs, 0)} max={members.reduce((sum, worker) => sum + worker.max_jobs, 0)} />{manage && group === 'version' && <ActionButton small action={drainVersionAction(key, members, live.length - members.length)} />}</p>
        </li>
      ))}
    </ul>
  )
}

export default function WorkersPage() {
  useTitle('Workers')
  const address = useAddress()
  const { may, platformAdmin } = useSession()
  const manage = may('workers:manage') && platformAdmin
  const gone = address.get('gone') !== null
  const group = address.get('group') ?? 'version'
  const query = useApi('/api/v2/workers', { query: { gone } }, { topics: ['workers'], pollMs: 5_000, keep: true })
  const opened = address.get('worker')
  const versions = new Set((query.data?.workers ?? []).filter((worker) => !isGone(worker)).map((worker) => worker.version))
  return (
    <Page fill>
      <PageHeader title="Workers" note="Processes that execute runs. If one dies, other workers continue its runs within seconds.">
        <Check label="Include ended workers" checked={gone} onChange={(event) => address.set({ gone: event.target.checked ? '1' : null })} />
        <Select aria-label="Group by" value={group} options={[['version', 'By version'], ['host', 'By host']]} onChange={(event) => address.set({ group: event.target.value })} />
        <CopyRead path="/api/v2/workers" cli={asCli('workers', ...(gone ? ['--all'] : []))} />
      </PageHeader>
      {versions.size > 1 && <p role="status" className="rounded-md bg-wait-soft px-3 py-1.5 text-wait">Workers run {versions.size} versions ({[...versions].join(', ')}): a roll-out is in progress, or was not finished.</p>}
      {query.data !== undefined && <Groups workers={query.data.workers} group={group} manage={manage} />}
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">
        <Loaded query={query}>
          {({ workers }) =>
            workers.length === 0 ? (
              <Empty icon={Server} title="No worker is connected" command="runlane worker app:app">
                Runs are stored, and wait until a worker is started. A server started with --worker executes runs itself.
              </Empty>
            ) : (
              <Table<Worker> name="workers" label="Workers" columns={COLUMNS} rows={workers} id={(worker) => worker.worker_id} link={(worker) => address.link({ worker: worker.worker_id })} dimmed={isGone} actions={manage ? (worker) => (isGone(worker) ? null : <ActionMenu label={`Actions of ${worker.worker_id}`} actions={[drainAction(worker)]} />) : undefined} footer={<span>{plural(workers.length, 'worker')} at <Time at={new Date(serverNow()).toISOString()} /></span>} />
            )
          }
        </Loaded>
      </section>
      {opened !== null && <WorkerDialog key={opened} workerId={opened} onClose={() => address.set({ worker: null })} />}
    </Page>
  )
}
