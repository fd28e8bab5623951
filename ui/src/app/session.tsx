/* Who is signed in and what the key may do. The key itself becomes an httpOnly cookie and never stays in the page. */
import { queryOptions, useQuery } from '@tanstack/react-query'
import { createContext, type ReactNode, use, useEffect, useRef, useSyncExternalStore } from 'react'
import { call, type ResponseOf, send } from '@/api/client'
import { type ApiError, toApiError } from '@/api/errors'
import { queryClient } from '@/api/query'
import { setServerOffset } from '@/format/time'
import { repair } from '@/live/connection'
import { ErrorNote } from '@/parts/Loading'
import { notify } from '@/parts/Notices'
import { forgetPreferences } from './preferences'
import { SignInPage } from './SignIn'

export type Me = ResponseOf<'/api/v2/me', 'get'>
export type Info = ResponseOf<'/api/v2/info', 'get'>

const PLATFORM_TENANT = 'default'

export interface Session {
  me: Me
  info: Info
  may: (permission: string) => boolean
  platformAdmin: boolean
  /** Whether the key may change what concerns every tenant, such as lanes, if its role permits it. */
  platform: boolean
}

const SessionContext = createContext<Session | null>(null)

export function useSession(): Session {
  const session = use(SessionContext)
  if (session === null) throw new Error('useSession is used outside of SessionGate')
  return session
}

let expired = false
const listeners = new Set<() => void>()

function setExpired(value: boolean): void {
  if (expired === value) return
  expired = value
  for (const listener of listeners) listener()
}

/** Whether a request was refused because the session has ended; a dialog over the page asks for the key again. */
export function useExpired(): boolean {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    () => expired,
  )
}

/** Ask for the key again, and wait until the session continues. Another tenant or role loads the whole page instead. */
export function signedInAgain(): Promise<void> {
  setExpired(true)
  return new Promise((resolve) => {
    const listener = () => {
      if (expired) return
      listeners.delete(listener)
      resolve()
    }
    listeners.add(listener)
  })
}

export function watchSession(): void {
  const look = (error: unknown) => {
    if ((error as ApiError | null)?.status === 401) setExpired(true)
  }
  queryClient.getQueryCache().subscribe((event) => {
    if (event.type === 'updated' && event.action.type === 'error') look(event.action.error)
  })
  queryClient.getMutationCache().subscribe((event) => {
    if (event.type === 'updated' && event.action.type === 'error') look(event.action.error)
  })
  document.addEventListener('visibilitychange', lookAgain)
}

export async function signIn(key: string): Promise<void> {
  const before = queryClient.getQueryData(ME.queryKey)
  await send('post', '/api/v2/ui/session', { body: { key } as never })
  await continueAs(before)
}

/** Continue the page after a sign-in. Nothing that another tenant or role has read may stay in it. */
async function continueAs(before: Me | undefined): Promise<void> {
  if (before !== undefined) {
    const { tenant, role } = await call('get', '/api/v2/me')
    if (tenant !== before.tenant || role !== before.role) return location.reload()
  }
  setExpired(false)
  // Streams were refused as well, and would wait before they try again.
  repair()
}

/** Another tab may have signed in meanwhile: tabs share the cookie. */
function lookAgain(): void {
  if (!expired || document.visibilityState !== 'visible') return
  continueAs(queryClient.getQueryData(ME.queryKey)).catch(() => undefined)
}

/** End the session here and on the server, and forget everything that was read. */
export async function signOut(): Promise<void> {
  try {
    await send('delete', '/api/v2/ui/session')
  } catch (error) {
    return notify(`The session has not ended: ${toApiError(error).message}`, { bad: true })
  }
  queryClient.clear()
  forgetPreferences('start.')
  location.assign(document.baseURI)
}

async function readInfo(signal: AbortSignal): Promise<Info> {
  const sent = Date.now()
  const info = await call('get', '/api/v2/info', { signal })
  setServerOffset(Date.parse(info.server_time) - (sent + Date.now()) / 2)
  return info
}

const INFO = queryOptions<Info, ApiError>({ queryKey: ['info'], queryFn: ({ signal }) => readInfo(signal), refetchInterval: 5 * 60_000 })
const ME = queryOptions<Me, ApiError>({ queryKey: ['me'], queryFn: ({ signal }) => call('get', '/api/v2/me', { signal }) })

/** Ask for both while the code of the page is still loading. */
export function readSessionAhead(): void {
  void queryClient.prefetchQuery(INFO)
  void queryClient.prefetchQuery(ME)
}

export function SessionGate({ children }: { children: ReactNode }) {
  const info = useQuery(INFO)
  const me = useQuery(ME)
  const first = me.error?.status === 401 && me.data === undefined
  useEffect(() => {
    if (first) setExpired(false)
  }, [first])
  // Another tab may have signed in with another key: what this one has read belongs to the first.
  const owner = me.data === undefined ? null : `${me.data.tenant} ${me.data.role}`
  const opened = useRef<string | null>(null)
  useEffect(() => {
    if (opened.current !== null && owner !== null && owner !== opened.current) location.reload()
    opened.current ??= owner
  }, [owner])
  if (first) return <SignInPage version={info.data?.version} />
  const error = info.error ?? me.error ?? (info.data === undefined ? info.failureReason : me.failureReason)
  if (me.data === undefined || info.data === undefined) {
    return error === null ? <Opening /> : <ErrorNote error={error} onRetry={() => void queryClient.invalidateQueries()} />
  }
  const permissions = new Set<string>(me.data.permissions)
  const platformAdmin = me.data.role === 'platform_admin'
  const session: Session = {
    me: me.data,
    info: info.data,
    may: (permission) => permissions.has(permission),
    platformAdmin,
    platform: platformAdmin || me.data.tenant === PLATFORM_TENANT,
  }
  return <SessionContext value={session}>{children}</SessionContext>
}

function Opening() {
  return (
    <p role="status" className="sr-only">
      Loading
    </p>
  )
}
