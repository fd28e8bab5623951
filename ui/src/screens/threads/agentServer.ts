/* The agent server's part of the API: threads and assistants. Its shapes are those of LangGraph's clients. */
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { type Method, send } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { ActionRequest } from '@/parts/action/action'

export interface Interrupt {
  id?: string
  value: unknown
}

export interface Thread {
  thread_id: string
  status: string
  created_at: string
  updated_at: string
  metadata: Record<string, unknown>
  values: unknown
  interrupts: Record<string, Interrupt[]>
}

export interface Assistant {
  assistant_id: string
  graph_id: string
  name: string
  description?: string | null
  version: number
  created_at: string
  updated_at: string
  metadata: Record<string, unknown>
}

export interface ThreadRun {
  run_id: string
  assistant_id: string
  status: string
  created_at: string
  updated_at: string
}

export interface Checkpoint {
  values: unknown
  next: string[]
  created_at: string | null
  checkpoint: { checkpoint_id?: string } | null
  metadata: Record<string, unknown> | null
}

export const PAGE = 50

/** Read something of the agent server. It has no topic of its own: runs of threads are runs. */
export function useAgentServer<T>(path: string, body?: unknown) {
  return useQuery<T, ApiError>({
    queryKey: ['agent-server', path, body ?? null],
    queryFn: async ({ signal }) => (await send(body === undefined ? 'get' : 'post', path, { body: body as never, signal })) as T,
    placeholderData: keepPreviousData,
    meta: { topics: ['runs'] },
  })
}

export function agentRequest(method: Method, path: string, body?: unknown): ActionRequest {
  return { method, path, body, cli: undefined, headers: undefined }
}

export const threadPath = (id: string, rest = ''): string => `/threads/${encodeURIComponent(id)}${rest}`

export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value)
}

/** All open questions of a thread. */
export function interruptsOf(thread: Thread): Interrupt[] {
  return Object.values(thread.interrupts ?? {}).flat()
}
