/* One worker: what it is, what it executes, what it has lost, and which kinds it has. */
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { plural } from '@/format/number'
import { shortId } from '@/format/text'
import { Dialog } from '@/parts/Dialog'
import { Loaded } from '@/parts/Loading'
import { Facts } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import { Time } from '@/parts/Time'
import { cpuOf, Heartbeat, lanesOf, memoryOf, type Worker, WorkerStatus } from './worker'

type Loss = components['schemas']['WorkerLoss']

/** As many losses as the server returns. */
const MOST_LOSSES = 100

function Process({ worker }: { worker: Worker }) {
  return (
    <Facts
      items={[
        ['Status', <WorkerStatus key="status" worker={worker} />],
        ['Host', worker.hostname ?? '–'],
        ['Process', worker.pid ?? '–'],
        ['Version', worker.version],
        ['Slots', `${worker.active_jobs} of ${worker.max_jobs}`],
        ['Heartbeat', <Heartbeat key="beat" worker={worker} />],
        ['Up since', <Time key="since" at={worker.started_at} style="exact" />],
        ['Ended', <Time key="ended" at={worker.ended_at} style="exact" />],
        ['Memory', memoryOf(worker)],
        ['CPU', cpuOf(worker)],
        ['Python', worker.python ?? '–'],
        ['Health', worker.health_address ?? '–'],
        ['Lanes', lanesOf(worker)],
      ]}
    />
  )
}

function Losses({ losses }: { losses: Loss[] }) {
  if (losses.length === 0) return <p className="text-soft">No run was lost with this worker.</p>
  return (
    <>
      <p className="text-soft">
        {losses.length === MOST_LOSSES ? `The latest ${MOST_LOSSES} attempts` : plural(losses.length, 'attempt')} ended because the worker died or was cut off. The runs continue after their last recorded step.
      </p>
      <ul aria-label="Lost attempts" className="mt-1 max-h-60 divide-y divide-line overflow-y-auto rounded-md border border-line" tabIndex={0}>
        {losses.map((loss) => (
          <li key={`${loss.run_id} ${loss.attempt}`} className="flex flex-wrap items-center gap-x-4 gap-y-0.5 px-2 py-1">
            <Link href={`/runs/${loss.run_id}?tab=attempts`} className="font-mono text-xs text-accent underline">{shortId(loss.run_id)}</Link>
            <span className="min-w-0 truncate">{loss.target}</span>
            <span className="text-soft">attempt {loss.attempt}, <Time at={loss.ended_at} style="relative" /></span>
            <span className="ml-auto"><Status value={loss.status} plain /></span>
          </li>
        ))}
      </ul>
    </>
  )
}

export function WorkerDialog({ workerId, onClose }: { workerId: string; onClose: () => void }) {
  const detail = useApi('/api/v2/workers/{worker_id}', { path: { worker_id: workerId } }, { topics: ['workers', 'runs'] })
  return (
    <Dialog wide title={<>Worker <code className="font-mono">{workerId}</code></>} onClose={onClose}>
      <Loaded query={detail}>
        {({ worker, run_ids, losses }) => (
          <>
            <Process worker={worker} />
            <h3 className="mt-3 font-semibold">Runs</h3>
            <p><Link href={`/runs?worker=${workerId}&window=all&children=yes`} className="text-accent underline">All runs that it executed last</Link></p>
            {run_ids.length > 0 && (
              <ul aria-label="Runs that it executes" className="mt-1 flex flex-wrap gap-x-3">
                {run_ids.map((id) => <li key={id}><Link href={`/runs/${id}`} className="font-mono text-xs text-accent underline">{shortId(id)}</Link></li>)}
              </ul>
            )}
            <h3 className="mt-3 font-semibold">Losses</h3>
            <Losses losses={losses} />
            <h3 className="mt-3 font-semibold">Kinds</h3>
            <p className="break-words text-soft">{worker.targets === null ? 'The worker does not report which kinds it has.' : worker.targets.join(', ')}</p>
          </>
        )}
      </Loaded>
    </Dialog>
  )
}
