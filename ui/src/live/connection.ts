/* Whether what is shown is live. One store: the requests report answers and failures, the hint stream its phase. */
import { useSyncExternalStore } from 'react'
import { send } from '@/api/client'
import { toApiError } from '@/api/errors'
import { queryClient } from '@/api/query'
import { formatClock } from '@/format/time'

export type Phase = 'connecting' | 'live' | 'polling'

export interface Connection {
  phase: Phase
  /** Switched off by the user. */
  paused: boolean
  /** Since when the server does not answer, as a clock time; null while it does. */
  away: string | null
  /** When the last answer arrived. */
  lastAnswer: string | null
}

let state: Connection = { phase: 'connecting', paused: false, away: null, lastAnswer: null }
let answeredAt = Date.now()
const listeners = new Set<() => void>()
const repairs = new Set<() => void>()

function update(change: Partial<Connection>): void {
  state = { ...state, ...change }
  for (const listener of listeners) listener()
}

export function subscribe(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

export function useConnection(): Connection {
  return useSyncExternalStore(subscribe, () => state)
}

export function connection(): Connection {
  return state
}

export function setPhase(phase: Phase): void {
  if (state.phase !== phase) update({ phase })
}

export function setPaused(paused: boolean): void {
  update({ paused })
  if (!paused) repair()
}

/** Called after an outage, a sleep or a pause: everything that is shown is read again. */
export function onRepair(callback: () => void): () => void {
  repairs.add(callback)
  return () => repairs.delete(callback)
}

export function repair(): void {
  void queryClient.invalidateQueries()
  for (const callback of repairs) callback()
}

export function reportAnswer(): void {
  answeredAt = Date.now()
  if (state.away === null) return
  update({ away: null, lastAnswer: null })
  repair()
}

const DELAYS = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000]
let probing = false

/** The server did not answer: say so, and look for it until it does. */
export function reportAway(): void {
  if (state.away === null) {
    update({ away: formatClock(new Date().toISOString()), lastAnswer: formatClock(new Date(answeredAt).toISOString()) })
  }
  if (!probing) void probe()
}

async function probe(): Promise<void> {
  probing = true
  for (let count = 0; state.away !== null; count++) {
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, DELAYS[Math.min(count, DELAYS.length - 1)])
      window.addEventListener('online', () => (clearTimeout(timer), resolve(undefined)), { once: true })
    })
    try {
      // Not /health, which a process without its database answers: the page would appear connected, and ask in vain.
      await send('get', '/ready')
      reportAnswer()
    } catch (error) {
      // Any answer of the server itself means that it is reachable.
      if (!toApiError(error).offline) reportAnswer()
    }
  }
  probing = false
}

export function watchRequests(): void {
  queryClient.getQueryCache().subscribe((event) => {
    if (event.type !== 'updated') return
    const { action } = event
    if (action.type === 'success' && action.manual !== true) reportAnswer()
    if ((action.type === 'failed' || action.type === 'error') && toApiError(action.error).offline) reportAway()
  })
  window.addEventListener('offline', reportAway)
}
