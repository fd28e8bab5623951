/* Start a run: a form made of the input schema, the same as JSON, and how it is queued. */
import { useMutation } from '@tanstack/react-query'
import { Play } from 'lucide-react'
import { useEffect, useState } from 'react'
import { Link, useLocation } from 'wouter'
import { type ApiError, toApiError } from '@/api/errors'
import { queryClient, useApi } from '@/api/query'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { visible } from '@/format/text'
import { perform } from '@/parts/action/action'
import { RequestCommands } from '@/parts/action/ActionDialog'
import { newKey } from '@/parts/action/changeKey'
import { Button } from '@/parts/Button'
import { Empty } from '@/parts/Empty'
import { Field } from '@/parts/form/Field'
import { Skeleton } from '@/parts/Loading'
import { notify } from '@/parts/Notices'
import { Page, PageHeader, Panel } from '@/parts/Panel'
import { InputFields } from './InputFields'
import { OptionFields } from './OptionFields'
import { startConsequence, startRequest } from './startRequest'
import { type StartTarget, useInputForm, useTargets } from './targets'
import { useStartDraft } from './useStartDraft'

const GROUPS: [StartTarget['kind'], string][] = [
  ['orchestration', 'Orchestrations'],
  ['agent', 'Agents'],
  ['task', 'Tasks'],
]

function TargetField({ targets, selected, onSelect }: { targets: StartTarget[]; selected: string | null; onSelect: (target: string) => void }) {
  const chosen = targets.find((candidate) => candidate.target === selected)
  return (
    <Field label="Target" hint={chosen?.description ? visible(chosen.description) : undefined}>
      {(ids) => (
        <select {...ids} value={selected ?? ''} onChange={(event) => onSelect(event.target.value)} className="h-7.5 w-full rounded-md border border-line-strong bg-surface px-1.5">
          <option value="">Choose what to start</option>
          {GROUPS.map(([kind, label]) => (
            <optgroup key={kind} label={label}>
              {targets
                .filter((candidate) => candidate.kind === kind)
                .map((candidate) => (
                  <option key={candidate.target} value={candidate.target}>
                    {candidate.name}
                  </option>
                ))}
            </optgroup>
          ))}
        </select>
      )}
    </Field>
  )
}

function StartForm({ target, like }: { target: string; like: string | null }) {
  const form = useInputForm(target)
  const draft = useStartDraft(target, form, like)
  const [stay, setStay] = useState(false)
  const [, navigate] = useLocation()
  const [key, setKey] = useState(() => newKey())
  const { may } = useSession()
  const sent = startRequest(target, form?.message === 'none' ? null : draft.message, draft.values, draft.options)
  const text = JSON.stringify(sent.body)
  // Another content is another run; the same content sent twice is one.
  useEffect(() => setKey(newKey()), [text])
  const mutation = useMutation<{ run_id: string }, ApiError>({
    mutationFn: async () => (await perform(sent, key).catch((error: unknown) => Promise.reject(toApiError(error)))) as { run_id: string },
    onSuccess: ({ run_id }) => {
      draft.remember()
      setKey(newKey())
      void queryClient.invalidateQueries()
      if (!stay) navigate(`/runs/${run_id}`)
      else notify(<>Started <Link href={`/runs/${run_id}`} className="font-mono text-xs text-accent underline">{run_id}</Link>.</>)
    },
  })
  if (form === undefined) return <Skeleton rows={5} />
  const refused = !may('runs:write') ? 'Your role may not start runs.' : draft.refused
  const submit = () => {
    if (refused === null && !mutation.isPending) mutation.mutate()
  }
  return (
    <form
      className="flex flex-col gap-4"
      onSubmit={(event) => {
        event.preventDefault()
        submit()
      }}
    >
      <InputFields form={form} draft={draft} error={mutation.error} />
      <details open={draft.hasOptions}>
        <summary className="w-fit font-medium">Options</summary>
        <div className="mt-2">
          <OptionFields options={draft.options} onChange={draft.setOptions} problems={Object.fromEntries((mutation.error?.fields ?? []).map((problem) => [problem.field, problem.message]))} />
        </div>
      </details>
      <p className="text-soft">{startConsequence(draft.options)}</p>
      <div className="flex flex-wrap items-center gap-3">
        <Button look="main" icon={Play} type="submit" disabled={mutation.isPending} refused={refused}>
          Start the run
        </Button>
        <label className="flex min-h-6 items-center gap-2">
          <input type="checkbox" className="size-4 accent-accent" checked={stay} onChange={(event) => setStay(event.target.checked)} />
          Stay here and start another
        </label>
      </div>
      <RequestCommands request={sent} />
    </form>
  )
}

export default function StartPage() {
  useTitle('Start a run')
  const address = useAddress()
  const like = address.get('like')
  const { targets, loading } = useTargets()
  const source = useApi('/api/v2/runs/{run_id}', { path: { run_id: like ?? '' } }, { enabled: like !== null })
  const target = address.get('target') ?? source.data?.target ?? null
  return (
    <Page>
      <PageHeader title="Start a run" note={like === null ? undefined : <>With the input of <Link href={`/runs/${like}`} className="font-mono text-xs text-accent underline">{like}</Link>.</>} />
      <div className="w-full max-w-[760px]">
        <Panel>
          {loading ? (
            <Skeleton rows={5} />
          ) : targets.length === 0 ? (
            <Empty icon={Play} title="Nothing can be started yet" command="runlane sync --dir definitions">
              Targets are tasks of your Python app, orchestrations and agents. Register a task with @app.task, or store definitions.
            </Empty>
          ) : (
            <div className="flex flex-col gap-4">
              <TargetField targets={targets} selected={target} onSelect={(next) => address.set({ target: next, like: null }, { push: true })} />
              {target !== null && <StartForm key={`${target} ${source.data === undefined ? '' : like}`} target={target} like={source.data === undefined ? null : like} />}
            </div>
          )}
        </Panel>
      </div>
    </Page>
  )
}
