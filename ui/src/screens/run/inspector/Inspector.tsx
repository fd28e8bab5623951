/* The inspector: one execution in detail, beside the timeline or the graph. */
import { GitFork, X } from 'lucide-react'
import { useState } from 'react'
import { useApi } from '@/api/query'
import { hasSteps, type Run, type Step } from '@/api/types'
import { useAddress } from '@/app/address'
import { usePreference } from '@/app/preferences'
import { useSession } from '@/app/session'
import { formatCost, formatCount } from '@/format/number'
import { visible } from '@/format/text'
import { Button, ButtonLink, IconButton } from '@/parts/Button'
import { CopyIconButton } from '@/parts/Copy'
import { JsonView } from '@/parts/json/JsonView'
import { Facts } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import { Duration, Elapsed, Time } from '@/parts/Time'
import { AnswerButton } from '@/screens/inbox/AnswerButton'
import { ToolCall } from '../conversation/ItemViews'
import { ForkDialog } from '../dialogs/ForkDialog'
import { RunError } from '../header/RunError'
import type { RunStore } from '../model/store'
import type { RunModel, Span } from '../model/types'
import { ResizeHandle } from './ResizeHandle'

interface InspectorProps {
  run: Run
  store: RunStore
  span: string
  onClose: () => void
}

function callOf(model: RunModel, span: Span) {
  if (span.kind !== 'tool' || span.path === null) return undefined
  const id = span.id.slice(span.id.indexOf('#call/') + 6)
  return model.conversations
    .get(span.path)
    ?.items.flatMap((item) => (item.kind === 'answer' ? item.calls : []))
    .find((call) => call.id === id)
}

function Recorded({ step }: { step: Step }) {
  return (
    <>
      {step.error !== null && <RunError error={step.error} />}
      {step.route !== null && (
        <p>
          Route <code className="font-mono text-xs">{step.route}</code>
        </p>
      )}
      {step.input !== null && (
        <section>
          <h3 className="mb-1 font-medium">Read from the state</h3>
          <JsonView value={step.input} label="the input of the step" />
        </section>
      )}
      <section>
        <h3 className="mb-1 font-medium">Output</h3>
        <JsonView value={step.output} label="the output of the step" openDepth={3} />
      </section>
    </>
  )
}

/** A step beyond those that are listed: its values are read one by one. */
function LaterStep({ runId, path }: { runId: string; path: string }) {
  const valueOf = (name: string) => ({ path: { run_id: runId, ref: `steps/${name}/${path}` } })
  const input = useApi('/api/v2/runs/{run_id}/values/{ref}', valueOf('input'), { staleMs: Infinity })
  const output = useApi('/api/v2/runs/{run_id}/values/{ref}', valueOf('output'), { staleMs: Infinity })
  const parts = [
    { title: 'Read from the state', label: 'the input of the step', value: input.data as unknown },
    { title: 'Output', label: 'the output of the step', value: output.data as unknown },
  ]
  return parts.map(({ title, label, value }) =>
    value === undefined || value === null ? null : (
      <section key={title}>
        <h3 className="mb-1 font-medium">{title}</h3>
        <JsonView value={value} label={label} openDepth={3} />
      </section>
    ),
  )
}

export function Inspector({ run, store, span: id, onClose }: InspectorProps) {
  const { may } = useSession()
  const address = useAddress()
  const [width, setWidth] = usePreference('inspector.width', 400)
  const [forking, setForking] = useState(false)
  const steps = useApi('/api/v2/runs/{run_id}/steps', { path: { run_id: run.run_id } }, { topics: ['runs'], runId: run.run_id, enabled: hasSteps(run.target) })
  const span = store.model.spans.get(id)
  const step = steps.data?.steps.find((candidate) => candidate.path === (span?.path ?? id))
  const isStep = span === undefined || span.kind === 'step'
  const call = span === undefined ? undefined : callOf(store.model, span)
  const wait = run.waiting_for.find((candidate) => candidate.path === id && candidate.kind === 'human' && candidate.answered_at === null)
  return (
    <aside aria-label="Inspector" style={{ width }} className="relative flex min-h-0 shrink-0 flex-col border-l border-line bg-surface max-md:w-full! max-md:border-t max-md:border-l-0">
      <ResizeHandle width={width} onResize={setWidth} />
      <header className="flex items-start gap-2 border-b border-line py-2 pr-2 pl-3">
        <div className="min-w-0 flex-1">
          <h2 className="truncate font-semibold">{visible(span?.name || id)}</h2>
          <p className="flex items-center gap-1">
            <code className="truncate font-mono text-xs text-soft">{visible(span?.path ?? id)}</code>
            <CopyIconButton text={span?.path ?? id} label="Copy the path" />
          </p>
        </div>
        <IconButton label="Close the inspector" icon={X} onClick={onClose} />
      </header>
      <div className="flex min-h-0 flex-1 flex-col gap-4 overflow-y-auto p-3">
        {span === undefined ? (
          <p className="text-soft">This step is not among the loaded events.</p>
        ) : (
          <Facts
            items={[
              ['Outcome', <Status key="outcome" value={span.outcome} />],
              ['Kind', span.type || span.kind],
              ['Began', <Time key="began" at={new Date(span.start).toISOString()} />],
              ['Time', span.end === null ? <Elapsed key="time" from={new Date(span.start).toISOString()} to={null} /> : <Duration key="time" seconds={(span.end - span.start) / 1_000} />],
              ...(span.seconds === null ? [] : ([['Executed', <Duration key="executed" seconds={span.seconds} />]] as [string, React.ReactNode][])),
              ['Attempt', span.attempt],
              ...(span.cost === null ? [] : ([['Cost', formatCost(span.cost)]] as [string, string][])),
              ...(span.tokens === null || span.tokens === 0 ? [] : ([['Tokens', formatCount(span.tokens)]] as [string, string][])),
              ...(span.tries === 0 ? [] : ([['Failed tries', span.tries]] as [string, number][])),
            ]}
          />
        )}
        {wait !== undefined && (
          <div className="flex flex-col gap-2 rounded-md bg-person-soft p-2">
            <p className="whitespace-pre-wrap">{visible(wait.prompt ?? wait.name)}</p>
            <span>
              <AnswerButton question={wait} />
            </span>
          </div>
        )}
        {span?.error && step?.error == null && <p className="break-words whitespace-pre-wrap text-bad">{visible(span.error)}</p>}
        {call !== undefined && <ToolCall call={call} live={false} />}
        {isStep && step !== undefined && <Recorded step={step} />}
        {span?.kind === 'step' && span.end !== null && step === undefined && steps.data?.next_cursor != null && <LaterStep runId={run.run_id} path={span.path ?? id} />}
        {span?.kind === 'model' && span.path !== null && (
          <span>
            <ButtonLink small to={address.link({ tab: 'conversation', step: span.path })}>
              Open the conversation
            </ButtonLink>
          </span>
        )}
        {isStep && step !== undefined && may('runs:write') && (
          <span>
            <Button small icon={GitFork} onClick={() => setForking(true)}>
              Fork from here
            </Button>
          </span>
        )}
        {forking && step !== undefined && <ForkDialog run={run} step={step.path} onClose={() => setForking(false)} />}
      </div>
    </aside>
  )
}
