/* Fork: a new run that begins at a recorded step, with a changed state. Shows what will not be executed again. */
import { GitFork } from 'lucide-react'
import { useMemo, useState } from 'react'
import { useLocation } from 'wouter'
import { formatJson, parseJson } from '@/api/json'
import { useApi } from '@/api/query'
import type { Run } from '@/api/types'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { shortId } from '@/format/text'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { LineDiff } from '@/parts/diff/LineDiff'
import { Check, Field, Select, TextArea } from '@/parts/form/Field'
import { changedKeys, stateBefore } from '../state/history'
import { useStateHistory } from '../state/useStateHistory'

export function ForkDialog({ run, step, onClose }: { run: Run; step: string | null; onClose: () => void }) {
  const steps = useApi('/api/v2/runs/{run_id}/steps', { path: { run_id: run.run_id } })
  const history = useStateHistory(run)
  const [, navigate] = useLocation()
  const recorded = useMemo(() => (steps.data?.steps ?? []).filter((entry) => entry.outcome !== null), [steps.data])
  const [chosen, setChosen] = useState(step ?? '')
  const from = chosen !== '' ? chosen : (recorded[0]?.path ?? '')
  const before = useMemo(() => stateBefore(history, from), [history, from])
  const [edited, setEdited] = useState<string | null>(null)
  const [latest, setLatest] = useState(false)
  const text = edited ?? formatJson(before)
  const { changes, problem } = useMemo(() => readState(text, before), [text, before])
  const index = recorded.findIndex((entry) => entry.path === from)
  return (
    <ActionDialog
      wide
      onClose={onClose}
      action={{
        id: 'fork',
        label: 'Fork',
        icon: GitFork,
        refused: from === '' ? 'The run has no recorded step to begin at.' : problem,
        title: `Fork run ${shortId(run.run_id)}`,
        consequence: `A new run with its own id begins at ${from}. ${plural(Math.max(0, index), 'recorded step is', 'recorded steps are')} copied and not executed again, which costs nothing. ${from} and everything after it is executed again, including its tools and model calls. ${
          Object.keys(changes).length === 0 ? 'The state is not changed.' : `Changed in the state: ${Object.keys(changes).join(', ')}.`
        } This run does not change.`,
        verb: 'Start the fork',
        request: request('post', '/api/v2/runs/{run_id}/fork', {
          path: { run_id: run.run_id },
          body: { from_step: from, state: changes, latest },
          cli: asCli('runs', 'fork', run.run_id, '--from', from, ...(Object.keys(changes).length > 0 ? ['--state', formatJson(changes, 0)] : []), ...(latest ? ['--latest'] : [])),
        }),
        done: 'The fork has started.',
        after: (response) => navigate(`/runs/${(response as { run_id: string }).run_id}`),
      }}
    >
      <Field label="Begin at" hint={steps.data?.next_cursor == null ? undefined : `The first ${plural(recorded.length, 'step')} can be chosen here; the command begins at any of them.`}>
        {(ids) => <Select {...ids} value={from} options={recorded.map((entry) => [entry.path, `${entry.path} (${entry.kind}, ${entry.outcome})`])} onChange={(event) => (setChosen(event.target.value), setEdited(null))} />}
      </Field>
      <Field label="State at that step" hint="JSON. Changed and added keys are sent; a fork cannot remove keys." problem={problem}>
        {(ids) => <TextArea {...ids} mono rows={9} disabled={history.loading} value={text} onChange={(event) => setEdited(event.target.value)} />}
      </Field>
      {edited !== null && problem === null && <LineDiff before={before} after={{ ...before, ...changes }} label="Changes of the state" />}
      <Check label="On the current versions of the definitions, where the recorded steps fit them" checked={latest} onChange={(event) => setLatest(event.target.checked)} />
    </ActionDialog>
  )
}

function readState(text: string, before: Record<string, unknown>): { changes: Record<string, unknown>; problem: string | null } {
  try {
    const value = parseJson(text)
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return { changes: {}, problem: 'The state must be an object.' }
    return { changes: changedKeys(before, value as Record<string, unknown>), problem: null }
  } catch {
    return { changes: {}, problem: 'This is not valid JSON.' }
  }
}
