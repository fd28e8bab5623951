/* The changes of one run that need no form, each with its exact consequence. */
import { Ban, Check, LockOpen, RotateCw } from 'lucide-react'
import type { Run, RunSummary } from '@/api/types'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { shortId } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { isEnded, statusText } from '@/text/status'

type AnyRun = RunSummary & Partial<Pick<Run, 'children' | 'waiting_for'>>

function cancelConsequence(run: AnyRun): string {
  const children = (run.children ?? []).filter((child) => !isEnded(child.status)).length
  const parts = [
    run.status === 'running'
      ? 'Its code is interrupted at the next point where it waits, and its steps that have ended stay recorded.'
      : 'It has not ended and will never start again.',
  ]
  if (children > 0) parts.push(`${plural(children, 'open child run is', 'open child runs are')} cancelled with it.`)
  const open = (run.waiting_for ?? []).filter((wait) => wait.kind === 'human').length
  if (open > 0) parts.push(`${plural(open, 'open question is', 'open questions are')} withdrawn.`)
  if (run.ordering_key !== null) parts.push(`The next run with the key "${run.ordering_key}" may start.`)
  return parts.join(' ')
}

export function cancelAction(run: AnyRun): Action {
  return {
    id: 'cancel',
    label: 'Cancel',
    icon: Ban,
    danger: true,
    refused: isEnded(run.status) ? `The run has ${statusText(run.status).word}; only open runs can be cancelled.` : null,
    title: `Cancel run ${shortId(run.run_id)}`,
    consequence: `${cancelConsequence(run)} A cancelled run cannot be retried; it can be forked or started again.`,
    verb: 'Cancel the run',
    request: request('post', '/api/v2/runs/{run_id}/cancel', { path: { run_id: run.run_id }, cli: asCli('runs', 'cancel', run.run_id) }),
    done: 'The run is being cancelled.',
  }
}

export function retryAction(run: AnyRun, latest = false): Action {
  return {
    id: latest ? 'retry-latest' : 'retry',
    label: latest ? 'Retry on the current versions' : 'Retry',
    icon: RotateCw,
    refused: run.status === 'failed' ? null : 'Only failed runs can be retried.',
    title: `Retry run ${shortId(run.run_id)}`,
    consequence: `The run keeps its id and continues after its last recorded step or checkpoint; recorded steps are not executed again. It gets ${plural(run.max_attempts, 'attempt')}.${
      latest ? ' It continues on the current versions of its definitions, or the server refuses and names the recorded step that does not fit.' : ' It stays on the versions that it was started with.'
    }`,
    verb: 'Retry the run',
    request: request('post', '/api/v2/runs/{run_id}/retry', {
      path: { run_id: run.run_id },
      body: { latest } as never,
      cli: asCli('runs', 'retry', run.run_id, ...(latest ? ['--latest'] : [])),
    }),
    done: 'The run is queued again.',
  }
}

export function approveAction(run: AnyRun): Action {
  return {
    id: 'approve',
    label: 'Approve',
    icon: Check,
    refused: run.status === 'awaiting_approval' ? null : 'The run is not held for an approval.',
    title: `Approve run ${shortId(run.run_id)}`,
    consequence: `The run may start. It is queued in the lane ${run.lane} with priority ${run.priority}, unless it is due later or its key is taken.`,
    verb: 'Approve the start',
    request: request('post', '/api/v2/runs/{run_id}/approve', { path: { run_id: run.run_id }, cli: asCli('runs', 'approve', run.run_id) }),
    done: 'The run is approved.',
  }
}

export function releaseAction(run: AnyRun): Action {
  return {
    id: 'release',
    label: 'Release the key',
    icon: LockOpen,
    refused: run.ordering_key === null ? 'The run has no ordering key.' : run.status === 'failed' ? null : 'Only a failed run can hold its key.',
    title: `Release the key of run ${shortId(run.run_id)}`,
    consequence: `The runs queued behind this failed run with the key "${run.ordering_key ?? ''}" may start, in their order. This run stays failed.`,
    verb: 'Release the key',
    request: request('post', '/api/v2/runs/{run_id}/release', { path: { run_id: run.run_id }, cli: asCli('runs', 'release', run.run_id) }),
    done: 'The key is released.',
  }
}

/** What can be done in this state, the most likely first. */
export function simpleActions(run: AnyRun): Action[] {
  return [approveAction(run), retryAction(run), cancelAction(run), releaseAction(run)].filter((action) => action.refused === null)
}
