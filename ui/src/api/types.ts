/* Short names for the shapes of the API that several screens use. */
import type { components } from './schema'

type Schemas = components['schemas']

/** Fields that newer servers add are optional, so that the page works with older ones. */
export type RunSummary = Schemas['RunSummary'] & { total_cost_usd?: number | null; total_tokens?: number | null; parent_run_id?: string | null }
export type Run = Schemas['Run'] & { total_cost_usd?: number | null; total_tokens?: number | null }
export type RunStatusName = Schemas['Status']
export type Question = Schemas['Question']
export type Step = Schemas['Step']
export type Attempt = Schemas['Attempt']
export type ChildRun = Schemas['ChildRun']
export type Lane = Schemas['Lane']
export type BulkJob = Schemas['BulkJob']

/** `orchestration:article` is the orchestration `article`; a target without a prefix is a task. */
export function targetParts(target: string): { kind: 'task' | 'orchestration' | 'agent' | 'graph'; name: string } {
  const match = /^(orchestration|agent|graph):(.+)$/.exec(target)
  if (match === null) return { kind: 'task', name: target }
  return { kind: match[1] as 'orchestration' | 'agent' | 'graph', name: match[2]! }
}

export function hasSteps(target: string): boolean {
  return targetParts(target).kind === 'orchestration' || targetParts(target).kind === 'agent'
}
