/* The stream of one run, by number: what was missed comes first, then what happens. */
import { apiUrl } from '@/api/client'
import { parseJson } from '@/api/json'
import { onRepair } from './connection'

export interface RunEvent {
  type: string
  run_id: string
  attempt: number
  /** Missing in live pieces, which are not stored. */
  seq?: number
  at?: string
  [field: string]: unknown
}

export interface StreamHandlers {
  onEvents: (events: RunEvent[]) => void
  onConnected: (connected: boolean) => void
}

const HIDDEN_MS = 60_000

/** Follow a run after a number. Frames that arrive together are handed over once per animation frame. */
export function followRun(runId: string, after: number, handlers: StreamHandlers): () => void {
  let last = after
  let source: EventSource | undefined
  let retry: ReturnType<typeof setTimeout> | undefined
  let hiddenTimer: ReturnType<typeof setTimeout> | undefined
  let failures = 0
  let ended = false
  let stopped = false
  let batch: RunEvent[] = []
  let frame = 0

  const flush = () => {
    frame = 0
    const events = batch
    batch = []
    if (events.length > 0 && !stopped) handlers.onEvents(events)
  }
  const schedule = () => {
    if (frame !== 0) return
    // A hidden page gets no animation frames, and must not pile up events.
    frame = document.visibilityState === 'visible' ? requestAnimationFrame(flush) : (setTimeout(flush, 250) as unknown as number)
  }
  const receive = (data: string) => {
    const event = parseJson(data) as RunEvent
    if (event.type === 'stream_complete') {
      ended = true
      close()
      return
    }
    if (typeof event.seq === 'number') {
      if (event.seq <= last) return
      last = event.seq
    }
    batch.push(event)
    schedule()
    if (event.type === 'done') {
      ended = true
      close()
    }
  }
  const close = () => {
    clearTimeout(retry)
    source?.close()
    source = undefined
  }
  const open = () => {
    close()
    if (stopped) return
    const next = new EventSource(apiUrl(`/api/v2/runs/${encodeURIComponent(runId)}/stream?after=${last}`), { withCredentials: true })
    source = next
    next.onopen = () => {
      failures = 0
      handlers.onConnected(true)
    }
    next.onmessage = (event: MessageEvent<string>) => receive(event.data)
    next.onerror = () => {
      if (ended) return
      handlers.onConnected(false)
      // The browser would repeat the old address; a new one resumes after the last number that was read.
      close()
      failures += 1
      retry = setTimeout(open, Math.min(30_000, 500 * 2 ** Math.min(failures, 6)))
    }
  }
  const visibility = () => {
    clearTimeout(hiddenTimer)
    if (document.visibilityState === 'hidden') hiddenTimer = setTimeout(close, HIDDEN_MS)
    else if (source === undefined && !ended) open()
  }
  document.addEventListener('visibilitychange', visibility)
  const endRepair = onRepair(() => {
    if (!ended) open()
  })
  open()
  return () => {
    stopped = true
    close()
    clearTimeout(hiddenTimer)
    cancelAnimationFrame(frame)
    document.removeEventListener('visibilitychange', visibility)
    endRepair()
  }
}
