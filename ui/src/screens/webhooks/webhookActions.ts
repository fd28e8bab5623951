/* The changes of an endpoint, each with its consequence. */
import { CirclePause, CirclePlay, KeyRound, RotateCw, SendHorizontal, Trash2 } from 'lucide-react'
import type { components } from '@/api/schema'
import { asCli } from '@/format/command'
import { type Action, request } from '@/parts/action/action'
import type { FormValues } from '@/parts/action/FormAction'

export type Endpoint = components['schemas']['WebhookEndpoint']
export type Delivery = components['schemas']['WebhookDelivery']

const list = (value: unknown): string[] => String(value ?? '').split(/[\s,]+/).filter((part) => part !== '')

export function createAction(values: FormValues): Action {
  const url = String(values.url ?? '')
  const types = list(values.types)
  const include = (values.include as ('input' | 'result')[] | undefined) ?? []
  const words = ['webhooks', 'create', url]
  if (types.length > 0) words.push('--types', types.join(','))
  if (include.length > 0) words.push('--include', include.join(','))
  if (values.signature === 'ed25519') words.push('--signature', 'ed25519')
  if (values.ordered === true) words.push('--ordered')
  if (values.description !== undefined) words.push('--description', String(values.description))
  return {
    id: 'new-endpoint', label: 'New endpoint', icon: SendHorizontal, title: 'New endpoint', verb: 'Create the endpoint',
    consequence: `Messages of ${types.length === 0 ? 'all types' : types.join(', ')} are sent to this URL from now on, signed with a secret that is shown once. Earlier messages are not sent.`,
    request: request('post', '/api/v2/webhooks/endpoints', {
      body: { url, signature: values.signature as 'hmac' | 'ed25519', ...(types.length === 0 ? {} : { types }), ...(include.length === 0 ? {} : { include }), ...(values.description === undefined ? {} : { description: String(values.description) }), ...(values.ordered === true ? { ordered: true } : {}) },
      cli: asCli(...words),
    }),
    done: 'The endpoint is created.',
  }
}

export function disableAction(endpoint: Endpoint, values: FormValues): Action {
  const reason = String(values.reason ?? '')
  return {
    id: 'disable', label: 'Disable', icon: CirclePause, danger: true, title: 'Disable the endpoint', verb: 'Disable the endpoint',
    consequence: 'Nothing is sent to it. Messages are held; when it is enabled you choose whether they are sent or discarded.',
    request: request('post', '/api/v2/webhooks/endpoints/{endpoint_id}/disable', { path: { endpoint_id: endpoint.id }, body: { reason }, cli: asCli('webhooks', 'disable', endpoint.id, '--reason', reason) }),
    done: 'The endpoint is disabled.',
  }
}

export function enableAction(endpoint: Endpoint, values: FormValues): Action {
  const held = (values.held as 'send' | 'discard' | undefined) ?? 'send'
  return {
    id: 'enable', label: 'Enable', icon: CirclePlay, title: 'Enable the endpoint', verb: 'Enable the endpoint',
    consequence: held === 'send' ? 'Messages are sent again, and those that were held meanwhile are sent now.' : 'Messages are sent again. Those that were held meanwhile are discarded; they can be replayed from the log.',
    request: request('post', '/api/v2/webhooks/endpoints/{endpoint_id}/enable', { path: { endpoint_id: endpoint.id }, body: { held }, cli: asCli('webhooks', 'enable', endpoint.id, '--held', held) }),
    done: 'The endpoint is enabled.',
  }
}

export function testAction(endpoint: Endpoint): Action {
  return {
    id: 'test', label: 'Send a test', icon: SendHorizontal, title: 'Send a test message', verb: 'Send the test',
    refused: endpoint.enabled ? null : 'The endpoint is disabled.',
    consequence: `One message of the type test.ping is sent to ${endpoint.url}, once, without a retry. It appears in the log below.`,
    request: request('post', '/api/v2/webhooks/endpoints/{endpoint_id}/test', { path: { endpoint_id: endpoint.id }, cli: asCli('webhooks', 'test', endpoint.id) }),
    done: 'The test message was sent; the log shows the answer.',
  }
}

export function rotateAction(endpoint: Endpoint, values: FormValues): Action {
  const hours = (values.overlap_hours as number | undefined) ?? 24
  return {
    id: 'rotate', label: 'Rotate the secret', icon: KeyRound, title: 'Rotate the secret', verb: 'Make a new secret',
    consequence: `A new secret is made and shown once. For ${hours} hours every message is signed with both secrets, so that the receiver can change without a gap; then the old one ends.`,
    request: request('post', '/api/v2/webhooks/endpoints/{endpoint_id}/rotate', { path: { endpoint_id: endpoint.id }, body: { overlap_hours: hours }, cli: asCli('webhooks', 'rotate', endpoint.id, '--overlap-hours', String(hours)) }),
    done: 'The secret is rotated.',
  }
}

export function deleteEndpointAction(endpoint: Endpoint): Action {
  return {
    id: 'delete-endpoint', label: 'Delete', icon: Trash2, danger: true, title: 'Delete the endpoint', verb: 'Delete the endpoint', typed: 'delete',
    consequence: 'The endpoint and its secret are deleted, and what was not delivered is discarded. This cannot be undone.',
    request: request('delete', '/api/v2/webhooks/endpoints/{endpoint_id}', { path: { endpoint_id: endpoint.id }, cli: asCli('webhooks', 'delete', endpoint.id) }),
    done: 'The endpoint is deleted.',
  }
}

export function replayAction(delivery: Delivery): Action {
  return {
    id: 'replay', label: 'Replay', icon: RotateCw, title: 'Replay the message', verb: 'Send it again',
    consequence: 'The same message is sent again as a new delivery, with the same message id, so that a receiver can recognize it.',
    request: request('post', '/api/v2/webhooks/deliveries/{delivery_id}/replay', { path: { delivery_id: delivery.id }, body: {}, cli: asCli('webhooks', 'replay', delivery.id) }),
    done: 'The message is sent again.',
  }
}

export function replayFailedAction(endpointId: string | null): Action {
  return {
    id: 'replay-failed', label: 'Replay failed ones', icon: RotateCw, title: 'Replay all failed messages', verb: 'Send them again',
    consequence: `Every message ${endpointId === null ? '' : 'of this endpoint '}that failed for good is sent again as a new delivery, with its message id.`,
    request: request('post', '/api/v2/webhooks/replay', { body: { status: 'failed', ...(endpointId === null ? {} : { endpoint_id: endpointId }) }, cli: asCli('webhooks', 'replay', ...(endpointId === null ? [] : ['--endpoint', endpointId])) }),
    done: (response) => {
      const result = response as { replayed: number; more: boolean }
      return `${result.replayed} messages are sent again.${result.more ? ' More remain: repeat it.' : ''}`
    },
  }
}
