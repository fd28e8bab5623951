/* One worker: what it is, what it executes, and which kinds it has. */
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import { shortId } from '@/format/text'
import { Dialog } from '@/parts/Dialog'
import { Chip } from '@/parts/Meter'
import { Facts } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import { cpuOf, Heartbeat, lanesOf, memoryOf, TONES, type Worker } from './worker'

export function WorkerDialog({ worker, onClose }: { worker: Worker; onClose: () => void }) {
  const detail = useApi('/api/v2/workers/{worker_id}', { path: { worker_id: worker.worker_id } }, { topics: ['workers', 'runs'] })
  const runs = `/runs?worker=${worker.worker_id}&window=all`
  return (
    <Dialog wide title={<>Worker <code className="font-mono">{worker.worker_id}</code></>} onClose={onClose}>
      <Facts
        items={[
          ['Status', <Chip key="status" tone={TONES[worker.status] ?? 'idle'}>{worker.status}</Chip>],
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
      <p className="mt-3"><Link href={runs} className="text-accent underline">Runs of this worker</Link></p>
      {detail.data !== undefined && detail.data.run_ids.length > 0 && (
        <ul aria-label="Runs that it executes" className="mt-1 flex flex-wrap gap-x-3">
          {detail.data.run_ids.map((id) => <li key={id}><Link href={`/runs/${id}`} className="font-mono text-xs text-accent underline">{shortId(id)}</Link></li>)}
        </ul>
      )}
      <h3 className="mt-3 font-semibold">Kinds</h3>
      <p className="break-words text-soft">{worker.targets === null ? 'The worker does not report which kinds it has.' : worker.targets.join(', ')}</p>
    </Dialog>
  )
}
