/* One timer for every ticking duration on the page; it stops while nothing ticks or the page is hidden. */
import { useSyncExternalStore } from 'react'
import { serverNow } from '@/format/time'

const listeners = new Set<() => void>()
let timer: ReturnType<typeof setInterval> | undefined
let second = Math.floor(serverNow() / 1_000)

function tick(): void {
  if (document.visibilityState === 'hidden') return
  second = Math.floor(serverNow() / 1_000)
  for (const listener of listeners) listener()
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener)
  timer ??= setInterval(tick, 1_000)
  return () => {
    listeners.delete(listener)
    if (listeners.size > 0) return
    clearInterval(timer)
    timer = undefined
  }
}

/** The server's time in whole seconds, as milliseconds. `active: false` does not tick. */
export function useNow(active = true): number {
  useSyncExternalStore(active ? subscribe : () => () => undefined, () => (active ? second : 0))
  return serverNow()
}
