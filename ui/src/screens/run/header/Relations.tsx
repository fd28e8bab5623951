/* Runs and other objects that a run belongs to. */
import type { ReactNode } from 'react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { Run } from '@/api/types'
import { useSession } from '@/app/session'
import { plural } from '@/format/number'
import { shortId } from '@/format/text'
import { CopyIconButton } from '@/parts/Copy'
import { StatusIcon } from '@/parts/Status'

function Relation({ term, children }: { term: string; children: ReactNode }) {
  return (
    <div className="min-w-0">
      <dt className="text-2xs text-faint">{term}</dt>
      <dd className="flex min-h-5 flex-wrap items-center gap-x-2">{children}</dd>
    </div>
  )
}

const LINK = 'inline-flex items-center gap-1 text-accent hover:underline'
const SHOWN = 4

/** The page of a trace in the tracing system that the server names; only an http address is one. */
function tracePage(template: string | null | undefined, traceId: string): string | null {
  return template && /^https?:\/\//.test(template) ? template.replaceAll('{trace_id}', encodeURIComponent(traceId)) : null
}

function Trace({ traceId }: { traceId: string | null }) {
  const { info } = useSession()
  if (traceId === null) return null
  const page = tracePage(info.trace_url, traceId)
  const id = <code title={traceId} className="font-mono text-xs">{shortId(traceId)}</code>
  return (
    <Relation term="Trace">
      <span className="flex items-center gap-0.5">
        {page === null ? id : <a href={page} target="_blank" rel="noopener noreferrer" className={LINK}>{id}</a>}
        <CopyIconButton text={traceId} label="Copy the trace id" />
      </span>
    </Relation>
  )
}

/** Runs that repeat this one from one of its steps. Only runs with steps can be forked. */
function Forks({ run }: { run: Run }) {
  const query = useApi('/api/v2/runs', { query: { forked_from: run.run_id, limit: SHOWN + 1 } }, { enabled: run.definition !== null, staleMs: 30_000 })
  const forks = query.data?.runs ?? []
  if (forks.length === 0) return null
  return (
    <Relation term="Forks">
      {forks.slice(0, SHOWN).map((fork) => (
        <Link key={fork.run_id} href={`/runs/${fork.run_id}`} title={`${fork.run_id}, ${fork.status}`} className={LINK}>
          <StatusIcon value={fork.status} size={13} />
          <code className="font-mono text-xs">{shortId(fork.run_id)}</code>
        </Link>
      ))}
      {forks.length > SHOWN && (
        <Link href={`/runs?forks=${run.run_id}&window=all`} className={LINK}>
          all forks
        </Link>
      )}
    </Relation>
  )
}

export function Relations({ run }: { run: Run }) {
  return (
    <>
      {run.children.length > 0 && (
        <Relation term="Child runs">
          {run.children.slice(0, SHOWN).map((child) => (
            <Link key={child.run_id} href={`/runs/${child.run_id}`} title={`${child.target} called by ${child.path}`} className={LINK}>
              <StatusIcon value={child.status} size={13} />
              {child.target.replace(/^\w+:/, '')}
            </Link>
          ))}
          {run.children.length > SHOWN && (
            <Link href={`/runs?parent=${run.run_id}&window=all`} className={LINK}>
              {plural(run.children.length - SHOWN, 'more', 'more')}
            </Link>
          )}
        </Relation>
      )}
      {run.forked_from !== null && (
        <Relation term="Forked from">
          <Link href={`/runs/${run.forked_from.run_id}?step=${encodeURIComponent(run.forked_from.from_step)}`} className={LINK}>
            <code className="font-mono text-xs">{shortId(run.forked_from.run_id)}</code> at {run.forked_from.from_step}
          </Link>
        </Relation>
      )}
      <Forks run={run} />
      {run.schedule_id !== null && (
        <Relation term="Schedule">
          <Link href={`/schedules/${encodeURIComponent(run.schedule_id)}`} className={LINK}>
            {run.schedule_id}
          </Link>
        </Relation>
      )}
      {run.session_id && (
        <Relation term="Conversation">
          <Link href={`/chat/${encodeURIComponent(run.session_id)}`} className={LINK}>
            {shortId(run.session_id)}
          </Link>
        </Relation>
      )}
      {run.after !== null && (
        <Relation term="Starts after">
          {Object.entries(run.after.runs)
            .slice(0, SHOWN)
            .map(([id, status]) => (
              <Link key={id} href={`/runs/${id}`} className={LINK}>
                {status !== null && <StatusIcon value={status} size={13} />}
                <code className="font-mono text-xs">{shortId(id)}</code>
              </Link>
            ))}
        </Relation>
      )}
      <Trace traceId={run.trace_id} />
      {run.worker_id !== null && (
        <Relation term="Worker">
          <Link href={`/workers?worker=${run.worker_id}`} className={LINK}>
            <code className="font-mono text-xs">{shortId(run.worker_id)}</code>
          </Link>
        </Relation>
      )}
    </>
  )
}
