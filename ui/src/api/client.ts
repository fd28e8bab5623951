/* Typed requests to the public HTTP API. The dashboard has no private endpoints and never sees a key. */
import { errorFrom, networkError } from './errors'
import { parseJson } from './json'
import type { paths } from './schema'

export type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'
export type PathsWith<M extends Method> = {
  [P in keyof paths]: paths[P] extends { [K in M]: infer Operation } ? (Operation extends undefined ? never : P) : never
}[keyof paths]

type Operation<P extends keyof paths, M extends Method> = M extends keyof paths[P] ? NonNullable<paths[P][M]> : never
type Json<T> = T extends { content: { 'application/json': infer Body } } ? Body : undefined
type Success<R> = R extends { 200: infer A } ? Json<A> : R extends { 201: infer B } ? Json<B> : R extends { 202: infer C } ? Json<C> : undefined

export type ResponseOf<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { responses: infer R } ? Success<R> : never
export type QueryOf<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { parameters: { query?: infer Q } } ? Q : undefined
export type PathParamsOf<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { parameters: { path: infer V } } ? V : undefined
export type BodyOf<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { requestBody?: { content: { 'application/json': infer B } } } ? B : undefined

export interface Params<P extends keyof paths, M extends Method> {
  path?: PathParamsOf<P, M>
  query?: QueryOf<P, M>
  body?: BodyOf<P, M>
  signal?: AbortSignal
  /** Requests with the same key have one effect, so a repeated click is one change. */
  idempotencyKey?: string
  headers?: Record<string, string>
}

/** The root that the UI is served below: the parent of <base href>. */
export const ROOT = new URL('../', typeof document === 'undefined' ? 'http://localhost/ui/' : document.baseURI)

type Primitive = string | number | boolean

export function buildPath(template: string, path: unknown, query: unknown): string {
  const filled = template.replace(/\{(\w+)\}/g, (_whole, name: string) =>
    encodeURIComponent(String((path as Record<string, Primitive>)[name])),
  )
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries((query ?? {}) as Record<string, Primitive | Primitive[] | null | undefined>)) {
    if (value === undefined || value === null || value === '') continue
    for (const item of Array.isArray(value) ? value : [value]) search.append(name, String(item))
  }
  const text = search.toString()
  return text === '' ? filled : `${filled}?${text}`
}

export function apiUrl(path: string): string {
  return new URL(path.replace(/^\//, ''), ROOT).href
}

let tenant: string | null = null

/** The tenant that a platform admin looks at; null is every tenant, or the tenant of the key. */
export function setTenant(next: string | null): void {
  tenant = next
}

export function currentTenant(): string | null {
  return tenant
}

/** A failure of the network as an error of the API. It may come with the response, or while its body is read. */
function failed(error: unknown): unknown {
  return error instanceof DOMException && error.name === 'AbortError' ? error : networkError()
}

async function readBody(response: Response): Promise<unknown> {
  const text = await response.text().catch((error: unknown) => {
    throw failed(error)
  })
  if (text === '') return undefined
  if (!(response.headers.get('content-type') ?? '').includes('json')) return text
  return parseJson(text)
}

export async function send(method: Method, path: string, options: Params<never, never> & { body?: unknown } = {}): Promise<unknown> {
  const unsafe = method !== 'get'
  const headers: Record<string, string> = { accept: 'application/json', ...options.headers }
  // The server refuses changes by cookie without this header, which a form of another site cannot send.
  if (unsafe) headers['x-runlane-ui'] = '1'
  if (unsafe && options.idempotencyKey !== undefined) headers['idempotency-key'] = options.idempotencyKey
  if (options.body !== undefined) headers['content-type'] = 'application/json'
  let response: Response
  try {
    response = await fetch(apiUrl(path), {
      method: method.toUpperCase(),
      headers,
      credentials: 'same-origin',
      cache: 'no-store',
      signal: options.signal,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
    })
  } catch (error) {
    throw failed(error)
  }
  const body = await readBody(response)
  if (!response.ok) throw errorFrom(response, body)
  return body
}

export async function call<M extends Method, P extends PathsWith<M>>(
  method: M,
  path: P,
  params: Params<P, M> = {},
): Promise<ResponseOf<P, M>> {
  const url = buildPath(path, params.path ?? {}, params.query)
  return (await send(method, url, params as unknown as Params<never, never>)) as ResponseOf<P, M>
}
