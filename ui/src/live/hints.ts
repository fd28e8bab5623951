/* One stream of hints for all tabs of a browser: a hint names what changed, the page fetches it.

A browser opens at most six HTTP/1.1 connections to a server, so streams per tab would stall the API. The tab that
holds a Web Lock reads the stream and shares it. A hidden tab lets go after a minute. Without locks, pages poll. */
import { apiUrl } from '@/api/client'
import { connection, onRepair, type Phase, reportAnswer, repair, setPhase } from './connection'

export interface Hint {
  topic: string
  ids?: string[]
}

type Message = { kind: 'hint'; hint: Hint } | { kind: 'phase'; phase: Phase } | { kind: 'reset' } | { kind: 'hello' }

const LOCK = 'runlane-live'
const HIDDEN_MS = 60_000
const POLL_MS = 5_000
const TICK_MS = 5_000
const SLEEP_MS = 20_000

const listeners = new Set<(hint: Hint) => void>()

export function onHint(listener: (hint: Hint) => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

function deliver(hint: Hint): void {
  for (const listener of listeners) listener(hint)
}

interface Frame {
  type?: unknown
  hints?: { topic?: unknown; ids?: unknown }[]
}

const EVERYTHING: Hint = { topic: '*' }

/** The hints of a frame. A frame that cannot be read means that anything may have changed. */
export function readFrame(data: string): Hint[] {
  try {
    const { type, hints = [] } = JSON.parse(data) as Frame
    const found = hints.map(({ topic, ids }) => ({
      topic: topic === 'all' ? '*' : String(topic),
      ids: Array.isArray(ids) && ids.length > 0 ? ids.map(String) : undefined,
    }))
    // Changes before the first frame of a stream have no hint, so what was read until then may be old.
    return type === 'hello' ? [EVERYTHING, ...found] : found
  } catch {
    return [EVERYTHING]
  }
}

class Leader {
  private source: EventSource | undefined
  private retry: ReturnType<typeof setTimeout> | undefined
  private failures = 0
  private opened = false
  private readonly endRepair: () => void

  constructor(
    private readonly share: (message: Message) => void,
    readonly phaseChanged: (phase: Phase) => void,
  ) {
    this.open()
    // A stream that has been refused would wait for its next try.
    this.endRepair = onRepair(() => {
      if (this.source?.readyState !== EventSource.CLOSED) return
      clearTimeout(this.retry)
      this.open()
    })
  }

  private open(): void {
    const source = new EventSource(apiUrl('/api/v2/live'), { withCredentials: true })
    this.source = source
    source.onopen = () => {
      this.failures = 0
      this.phaseChanged('live')
      reportAnswer()
      // What happened while no stream was open has no hint.
      if (this.opened) this.share({ kind: 'reset' })
      this.opened = true
    }
    source.onmessage = (event: MessageEvent<string>) => {
      for (const hint of readFrame(event.data)) this.share({ kind: 'hint', hint })
    }
    source.onerror = () => {
      this.phaseChanged('polling')
      if (source.readyState !== EventSource.CLOSED) return
      this.failures += 1
      this.retry = setTimeout(() => this.open(), Math.min(30_000, 1_000 * 2 ** this.failures))
    }
  }

  stop(): void {
    this.endRepair()
    clearTimeout(this.retry)
    this.source?.close()
  }
}

/** Start the live layer of this tab; the returned function ends it. */
export function startHints(): () => void {
  const channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel(LOCK)
  let leader: Leader | null = null
  let leaderPhase: Phase = 'connecting'
  let release: (() => void) | undefined
  let hiddenTimer: ReturnType<typeof setTimeout> | undefined
  let stopped = false

  const handle = (message: Message) => {
    if (message.kind === 'hint') deliver(message.hint)
    else if (message.kind === 'phase') setPhase(message.phase)
    else if (message.kind === 'reset') repair()
    else if (leader !== null) channel?.postMessage({ kind: 'phase', phase: leaderPhase } satisfies Message)
  }
  const share = (message: Message) => {
    channel?.postMessage(message)
    handle(message)
  }
  if (channel !== null) channel.onmessage = (event: MessageEvent<Message>) => handle(event.data)

  const lead = () => {
    if (stopped || release !== undefined) return
    const end = new AbortController()
    release = () => end.abort()
    const held = () =>
      new Promise<void>((resolve) => {
        leader = new Leader(share, (phase) => {
          leaderPhase = phase
          share({ kind: 'phase', phase })
        })
        end.signal.addEventListener('abort', () => {
          leader?.stop()
          leader = null
          resolve()
        })
      })
    navigator.locks.request(LOCK, { signal: end.signal }, held).catch(() => undefined)
    channel?.postMessage({ kind: 'hello' } satisfies Message)
  }
  const letGo = () => {
    release?.()
    release = undefined
  }

  const hasLocks = typeof navigator !== 'undefined' && 'locks' in navigator && channel !== null
  if (hasLocks) lead()
  else setPhase('polling')

  const visibility = () => {
    clearTimeout(hiddenTimer)
    if (document.visibilityState === 'hidden') {
      hiddenTimer = setTimeout(letGo, HIDDEN_MS)
      return
    }
    if (hasLocks && release === undefined) {
      lead()
      repair()
    }
  }
  document.addEventListener('visibilitychange', visibility)

  const poll = setInterval(() => {
    if (connection().phase === 'polling' && !connection().paused && document.visibilityState === 'visible') deliver(EVERYTHING)
  }, POLL_MS)

  // A timer that fires late means that the computer slept: connections are dead although no one reported it.
  let last = Date.now()
  const tick = setInterval(() => {
    const now = Date.now()
    const slept = now - last > TICK_MS + SLEEP_MS
    last = now
    if (!slept || document.visibilityState === 'hidden') return
    letGo()
    if (hasLocks) lead()
    repair()
  }, TICK_MS)

  return () => {
    stopped = true
    letGo()
    clearInterval(poll)
    clearInterval(tick)
    document.removeEventListener('visibilitychange', visibility)
    channel?.close()
  }
}
