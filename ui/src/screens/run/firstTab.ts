/* The view with which a run opens: the one that explains it best. The timeline of a task has its attempts alone. */
import { hasSteps } from '@/api/types'

export function firstTab(run: { target: string; status: string }): string {
  if (hasSteps(run.target)) return 'timeline'
  if (run.status === 'failed') return 'attempts'
  return run.status === 'running' || run.status === 'paused' ? 'timeline' : 'io'
}
