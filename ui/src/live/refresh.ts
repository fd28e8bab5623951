/* From hints to fresh data: at most one refresh a second, none while the user selects or has paused. */
import { useEffect } from 'react'
import { queryClient, type Topic } from '@/api/query'
import { connection, subscribe } from './connection'
import { type Hint, onHint } from './hints'

const GAP_MS = 1_000
let holds = 0
const pending = new Map<string, Set<string> | null>()
let timer: ReturnType<typeof setTimeout> | undefined
let last = 0

const releases = new Set<() => void>()

/** Hold refreshes while rows are selected, a menu is open or a dialog needs a still page. */
export function useHold(active: boolean): void {
  useEffect(() => {
    if (!active) return
    holds += 1
    return () => {
      holds -= 1
      if (holds > 0) return
      plan()
      for (const callback of releases) callback()
    }
  }, [active])
}

/** Whether refreshes are held. */
export function isHeld(): boolean {
  return holds > 0
}

/** Called when refreshes are no longer held. */
export function onRelease(callback: () => void): () => void {
  releases.add(callback)
  return () => releases.delete(callback)
}

function collect(hint: Hint): void {
  const known = pending.get(hint.topic)
  if (hint.ids === undefined || known === null) pending.set(hint.topic, null)
  else pending.set(hint.topic, new Set([...(known ?? []), ...hint.ids]))
  plan()
}

function plan(): void {
  if (timer !== undefined || pending.size === 0) return
  timer = setTimeout(flush, Math.max(0, last + GAP_MS - Date.now()))
}

function flush(): void {
  timer = undefined
  if (holds > 0 || connection().paused) return
  last = Date.now()
  const hints = new Map(pending)
  pending.clear()
  void queryClient.invalidateQueries({
    predicate: (query) => {
      const { topics, runId } = query.meta ?? {}
      if (topics === undefined) return false
      if (hints.has('*')) return true
      return topics.some((topic: Topic) => {
        const ids = hints.get(topic)
        if (ids === undefined) return false
        return ids === null || runId === undefined || ids.has(runId)
      })
    },
  })
}

export function startRefresh(): () => void {
  // What the page has just read is not read again before it is shown.
  last = Date.now()
  const endHints = onHint(collect)
  const endState = subscribe(() => {
    if (!connection().paused) plan()
  })
  return () => {
    endHints()
    endState()
  }
}
