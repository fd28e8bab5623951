/* What can be started: tasks, orchestrations and agents, each with the form of its input. */
import { useMemo } from 'react'
import { useApi } from '@/api/query'
import { targetParts } from '@/api/types'
import { useTenantParam } from '@/app/tenant'
import type { JsonSchema } from '@/parts/form/schema'
import { signatureText } from '@/format/text'

export interface StartTarget {
  /** As runs name it: `orchestration:article`, `agent:helper`, or the name of a task. */
  target: string
  kind: 'task' | 'orchestration' | 'agent'
  name: string
  description: string
}

export interface InputForm {
  schema: JsonSchema
  /** A message belongs to the input: optional, required, or not at all. */
  message: 'none' | 'optional' | 'required'
  note: string
}

export function useTargets(): { targets: StartTarget[]; loading: boolean } {
  const tenant = useTenantParam()
  const tasks = useApi('/api/v2/tasks', {}, { topics: ['definitions'] })
  const orchestrations = useApi('/api/v2/orchestrations', { query: { limit: 200, ...tenant } }, { topics: ['definitions'] })
  const agents = useApi('/api/v2/agents', { query: { limit: 200, ...tenant } }, { topics: ['definitions'] })
  const targets = useMemo(
    () => [
      ...(orchestrations.data?.orchestrations ?? []).map(({ id, description }): StartTarget => ({ target: `orchestration:${id}`, kind: 'orchestration', name: id, description })),
      ...(agents.data?.agents ?? []).map(({ id, description }): StartTarget => ({ target: `agent:${id}`, kind: 'agent', name: id, description })),
      ...(tasks.data?.tasks ?? []).map(({ name, description }): StartTarget => ({ target: name, kind: 'task', name, description })),
    ],
    [tasks.data, orchestrations.data, agents.data],
  )
  return { targets, loading: tasks.isPending || orchestrations.isPending || agents.isPending }
}

/** The form of a target's input; undefined while it is loading. */
export function useInputForm(target: string | null): InputForm | undefined {
  const parts = target === null ? null : targetParts(target)
  const tenant = useTenantParam()
  const tasks = useApi('/api/v2/tasks', {}, { topics: ['definitions'], enabled: parts?.kind === 'task' })
  const orchestration = useApi(
    '/api/v2/orchestrations/{name}/input',
    { path: { name: parts?.name ?? '' }, query: tenant },
    { topics: ['definitions'], enabled: parts?.kind === 'orchestration' },
  )
  return useMemo(() => {
    if (parts?.kind === 'agent') return { schema: { type: 'object', properties: {} }, message: 'required', note: '' }
    if (parts?.kind === 'orchestration') {
      if (orchestration.data === undefined) return undefined
      return { schema: orchestration.data.input_schema as JsonSchema, message: 'optional', note: 'The steps read the message as {state.user_input}.' }
    }
    const task = tasks.data?.tasks.find((candidate) => candidate.name === parts?.name)
    if (task === undefined) return undefined
    // A task whose arguments have no schema is filled in as JSON.
    return { schema: task.input_schema as JsonSchema, message: 'none', note: signatureText(task.signature) }
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [target, tasks.data, orchestration.data])
}
