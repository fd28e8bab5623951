/* The state of an orchestration by step: what each recorded step wrote, and the state after it. */
import type { Step } from '@/api/types'

export interface StateChange {
  key: string
  before: unknown
  after: unknown
  known: boolean
}

export interface StateEntry {
  path: string
  kind: string
  at: string
  outcome: string | null
  changes: StateChange[]
  /** The state after the step. */
  state: Record<string, unknown>
}

interface StepDefinition {
  id?: unknown
  type?: unknown
  output_key?: unknown
}

export function equal(a: unknown, b: unknown): boolean {
  return a === b || JSON.stringify(a) === JSON.stringify(b)
}

/** The key that a step writes, by its definition. Steps of inner orchestrations write into a state of their own. */
function keysOf(step: Step, byId: Map<string, StepDefinition>): string[] {
  if (step.path.includes('>')) return []
  const definition = byId.get(step.step_id ?? '')
  const keys = typeof definition?.output_key === 'string' ? [definition.output_key] : []
  if (definition?.type === 'human') keys.push('human_response')
  return keys
}

export function stateHistory(initial: Record<string, unknown>, steps: Step[], definitions: StepDefinition[]): StateEntry[] {
  const byId = new Map(definitions.map((definition) => [String(definition.id), definition]))
  let state = initial
  return steps.map((step) => {
    const changes: StateChange[] = []
    if (step.outcome === 'done') {
      for (const key of keysOf(step, byId)) {
        const known = Object.hasOwn(state, key)
        if (!known || !equal(state[key], step.output)) changes.push({ key, before: state[key], after: step.output, known })
        state = { ...state, [key]: step.output }
      }
    }
    return { path: step.path, kind: step.kind, at: step.ended_at, outcome: step.outcome, changes, state }
  })
}

/** The state before a step was executed. */
export function stateBefore(history: { initial: Record<string, unknown>; entries: StateEntry[] }, path: string): Record<string, unknown> {
  const index = history.entries.findIndex((entry) => entry.path === path)
  return index > 0 ? history.entries[index - 1]!.state : history.initial
}

export function changedKeys(before: Record<string, unknown>, after: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(after).filter(([key, value]) => !Object.hasOwn(before, key) || !equal(before[key], value)))
}
