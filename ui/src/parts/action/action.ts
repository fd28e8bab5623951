/* An action is a value: what it does, what it will change, and the request. Dialog, menu and palette use the same one. */
import type { LucideIcon } from 'lucide-react'
import type { ReactNode } from 'react'
import { ApiError } from '@/api/errors'
import { signedInAgain } from '@/app/session'
import { buildPath, call, type Method, type Params, type PathsWith, type ResponseOf, send } from '@/api/client'

export interface ActionRequest {
  method: Method
  /** The path with its parameters filled in. */
  path: string
  body?: unknown
  /** What commands show in place of a body with a secret. */
  shownBody?: unknown
  /** The same as a command of the `runlane` program. */
  cli?: string
  headers?: Record<string, string>
}

export interface Action {
  id: string
  label: string
  icon: LucideIcon
  /** Why it cannot be done now; null if it can. */
  refused?: string | null
  danger?: boolean
  /** The title of the dialog. */
  title: string
  /** What will happen, with numbers, and what will not. */
  consequence: ReactNode
  /** The word of the button that does it. */
  verb: string
  request: ActionRequest
  /** Must be typed before a change of this size. */
  typed?: string
  /** What is reported after it was done. */
  done: string | ((response: unknown) => ReactNode)
  /** Called with the response. */
  after?: (response: unknown) => void
}

export function request<M extends Method, P extends PathsWith<M>>(method: M, path: P, params: Params<P, M> & { cli?: string } = {}): ActionRequest {
  return { method, path: buildPath(path, params.path ?? {}, params.query), body: params.body, cli: params.cli, headers: params.headers }
}

/** Send the request of an action. If the session has ended, it is sent again after the sign-in, as the same change. */
export async function perform(action: ActionRequest, idempotencyKey: string): Promise<unknown> {
  for (;;) {
    try {
      return await send(action.method, action.path, { body: action.body as never, idempotencyKey, headers: action.headers })
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error
    }
    await signedInAgain()
  }
}

export type { ResponseOf }
export { call }
