/* A bulk job: progress, stop, and the runs it refused with the reason. */
import { CircleStop } from 'lucide-react'
import { Link, useParams } from 'wouter'
import { SLOW_POLL_MS, useApi } from '@/api/query'
import type { BulkJob } from '@/api/types'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { formatCount, plural } from '@/format/number'
import { type Action, request } from '@/parts/action/action'
import { ActionButton } from '@/parts/action/ActionButtons'
import { Empty } from '@/parts/Empty'
import { JsonView } from '@/parts/json/JsonView'
import { Loaded } from '@/parts/Loading'
import { Facts, Page, PageHeader, Panel } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import { Elapsed, Time } from '@/parts/Time'

function stopAction(job: BulkJob): Action {
  const left = job.total - job.changed - job.refused
  return {
    id: 'stop',
    label: 'Stop',
    icon: CircleStop,
    danger: true,
    title: 'Stop the bulk job',
    consequence: `${plural(left, 'run')} not changed yet ${left === 1 ? 'stays' : 'stay'} as before. ${plural(job.changed, 'run')} already changed ${job.changed === 1 ? 'stays' : 'stay'} changed.`,
    verb: 'Stop the job',
    request: request('post', '/api/v2/bulk/{job_id}/stop', { path: { job_id: job.job_id } }),
    done: 'The job is stopped.',
  }
}

function Progress({ job }: { job: BulkJob }) {
  const share = job.total === 0 ? 1 : (job.changed + job.refused) / job.total
  return (
    <div role="progressbar" aria-label="Progress of the job" aria-valuenow={Math.round(share * 100)} aria-valuemin={0} aria-valuemax={100} className="flex h-2 overflow-hidden rounded-full bg-sunken">
      <span className="bg-ok" style={{ width: `${(job.changed / Math.max(1, job.total)) * 100}%` }} />
      <span className="bg-bad" style={{ width: `${(job.refused / Math.max(1, job.total)) * 100}%` }} />
    </div>
  )
}

function Refused({ jobId, count, running }: { jobId: string; count: number; running: boolean }) {
  const items = useApi('/api/v2/bulk/{job_id}/items', { path: { job_id: jobId }, query: { state: 'refused', limit: 1000 } }, { enabled: count > 0, staleMs: 0, topics: ['bulk'], pollMs: running ? 2_000 : SLOW_POLL_MS })
  if (count === 0) return <Empty title="No run was refused" />
  return (
    <Loaded query={items}>
      {(page) => (
        <ul className="divide-y divide-line">
          {page.items.map((item) => (
            <li key={item.run_id} className="flex flex-wrap gap-x-3 px-3 py-1.5">
              <Link href={`/runs/${item.run_id}`} className="font-mono text-xs text-accent underline">
                {item.run_id}
              </Link>
              <code className="font-mono text-xs text-soft">{item.code}</code>
              <span>{item.reason}</span>
            </li>
          ))}
          {page.next_cursor !== null && <li className="px-3 py-1.5 text-soft">More runs were refused; the API lists them: GET /api/v2/bulk/{jobId}/items</li>}
        </ul>
      )}
    </Loaded>
  )
}

export default function BulkJobPage() {
  const { jobId = '' } = useParams<{ jobId: string }>()
  const { may } = useSession()
  useTitle('Bulk job')
  const query = useApi('/api/v2/bulk/{job_id}', { path: { job_id: jobId } }, { topics: ['runs', 'bulk'], pollMs: (job) => (job?.state === 'running' ? 1_000 : SLOW_POLL_MS) })
  return (
    <Page>
      <Loaded query={query}>
        {(job) => (
          <>
            <PageHeader title={`Bulk job: ${job.action}`} note={<code className="font-mono text-xs">{job.job_id}</code>}>
              {job.state === 'running' && may('runs:write') && <ActionButton action={stopAction(job)} />}
            </PageHeader>
            <Panel>
              <div className="flex flex-col gap-3">
                <Progress job={job} />
                <Facts
                  items={[
                    ['State', <Status key="state" value={job.state} />],
                    ['Changed', `${formatCount(job.changed)} of ${formatCount(job.total)}`],
                    ['Refused', formatCount(job.refused)],
                    ['Started', <Time key="at" at={job.created_at} />],
                    ['Duration', <Elapsed key="for" from={job.created_at} to={job.ended_at} />],
                    ['By', job.created_by],
                  ]}
                />
              </div>
            </Panel>
            <Panel title={`Refused runs (${formatCount(job.refused)})`} flush>
              <Refused key={job.state} jobId={jobId} count={job.refused} running={job.state === 'running'} />
            </Panel>
            <Panel title="Selection and options">
              <JsonView value={{ selection: job.selection, options: job.options, rate: job.rate }} label="selection" />
            </Panel>
          </>
        )}
      </Loaded>
    </Page>
  )
}
