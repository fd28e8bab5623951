/* The request that starts a run, and the same as a command. */
import { buildPath } from '@/api/client'
import { formatJson } from '@/api/json'
import { targetParts } from '@/api/types'
import { asCli } from '@/format/command'
import type { ActionRequest } from '@/parts/action/action'

export interface StartOptions {
  priority: string
  key: string
  delay: string
  hold: boolean
  tags: string
  webhook: string
  fairness: string
}

export const NO_OPTIONS: StartOptions = { priority: '', key: '', delay: '', hold: false, tags: '', webhook: '', fairness: '' }

const PATHS = { task: '/api/v2/tasks/{name}/run', orchestration: '/api/v2/orchestrations/{name}/run', agent: '/api/v2/agents/{name}/run', graph: '/api/v2/tasks/{name}/run' }

function tagsOf(options: StartOptions): string[] {
  return options.tags.split(/[\s,]+/).filter((tag) => tag !== '')
}

export function startRequest(target: string, message: string | null, input: Record<string, unknown>, options: StartOptions): ActionRequest {
  const { kind, name } = targetParts(target)
  const body: Record<string, unknown> = {}
  const words = ['run', kind === 'task' ? name : `${kind}:${name}`]
  if (message !== null) {
    body.message = message
    words.push('--message', message)
  }
  if (Object.keys(input).length > 0 || kind === 'task') {
    body.input = input
    words.push('--input', formatJson(input, 0))
  }
  const set = (field: string, option: string, text: string, value: unknown = text) => {
    if (text === '') return
    body[field] = value
    words.push(option, text)
  }
  set('priority', '--priority', options.priority, Number(options.priority))
  set('ordering_key', '--key', options.key)
  set('delay_seconds', '--delay', options.delay, Number(options.delay))
  set('fairness_key', '--fairness-key', options.fairness)
  set('webhook_url', '--webhook-url', options.webhook)
  if (options.hold) {
    body.hold = true
    words.push('--hold')
  }
  const tags = tagsOf(options)
  if (tags.length > 0) body.tags = tags
  for (const tag of tags) words.push('--tag', tag)
  return { method: 'post', path: buildPath(PATHS[kind], { name }, undefined), body, cli: asCli(...words) }
}

/** What happens when the request is sent, in words. */
export function startConsequence(options: StartOptions): string {
  if (options.hold) return 'The run is stored and waits until a person approves its start.'
  const parts = [options.delay === '' ? 'The run is queued and starts when a worker has a free slot.' : `The run is stored and queued after ${options.delay} seconds.`]
  if (options.key !== '') parts.push(`It waits for earlier runs with the key "${options.key}".`)
  return parts.join(' ')
}
