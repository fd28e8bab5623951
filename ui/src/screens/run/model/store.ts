/* The model of an open run: pages of events first, then its stream. Components read it; it notifies them once a frame. */
import { call } from '@/api/client'
import { followRun } from '@/live/runStream'
import { applyEvents, applySpoken, SPOKEN_TYPES } from './reduce'
import { addSpans, seedModel } from './seed'
import { emptyModel, type RunEvent, type RunModel } from './types'

const PAGE = 1_000
/** Spans of a group that are read at once. */
const CHILDREN = 400
/** A run with more events is opened with the timeline of the server. */
const MANY = 4_000
/** Longer values are cut in pages of events and read when they are opened. */
export const MAX_VALUE_BYTES = 65_536

export class RunStore {
  readonly runId: string
  model: RunModel = emptyModel()
  /** Changes with the model, so that React notices. */
  version = 0
  lastSeq = 0
  connected = true
  loading = true
  error: unknown = null
  /** False if the run has more steps than the server's timeline reads. */
  complete = true
  private listeners = new Set<() => void>()
  private stopStream: (() => void) | undefined
  private stopped = false

  /** `lastSeq`: the number of the last event that the page knows of. */
  constructor(runId: string, lastSeq = 0) {
    this.runId = runId
    this.lastSeq = lastSeq
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  snapshot = (): number => this.version

  private notify(): void {
    this.version += 1
    for (const listener of this.listeners) listener()
  }

  async start(): Promise<void> {
    this.stopped = false
    this.loading = true
    this.notify()
    try {
      await this.load()
      this.error = null
    } catch (error) {
      this.error = error
    }
    this.loading = false
    this.notify()
    if (this.error === null) this.follow()
  }

  private async load(): Promise<void> {
    const path = { run_id: this.runId }
    if (this.lastSeq > MANY) return this.seed()
    for (;;) {
      const page = await call('get', '/api/v2/runs/{run_id}/events', { path, query: { after: this.model.last, limit: PAGE, max_value_bytes: MAX_VALUE_BYTES } })
      if (this.stopped) return
      this.lastSeq = Math.max(this.lastSeq, page.last_seq)
      if (this.model.last === 0 && this.lastSeq - page.first_seq > MANY) return this.seed()
      if (this.model.last === 0 && page.first_seq > 1) this.model = emptyModel(page.first_seq)
      applyEvents(this.model, page.events as unknown as RunEvent[])
      this.notify()
      if (page.count < PAGE) return
    }
  }

  /** The number comes first: events after it are read from the stream, even if the timeline has some of them. */
  private async seed(): Promise<void> {
    const path = { run_id: this.runId }
    const last = this.lastSeq
    const [timeline, { attempts }, { first_seq: first }] = await Promise.all([
      call('get', '/api/v2/runs/{run_id}/timeline', { path, query: { limit: 2_000 } }),
      call('get', '/api/v2/runs/{run_id}/attempts', { path }),
      call('get', '/api/v2/runs/{run_id}/events', { path, query: { limit: 1, max_value_bytes: MAX_VALUE_BYTES } }),
    ])
    if (this.stopped) return
    this.model = seedModel(timeline, attempts, first, last)
    this.complete = timeline.complete
  }

  /** Read the children of a span of a long run, or the next of them. */
  async expand(id: string): Promise<void> {
    const span = this.model.spans.get(id)
    if (span === undefined) return
    const total = span.rest?.total ?? span.hidden?.count ?? 0
    const query = { parent: id, cursor: span.rest?.cursor, limit: CHILDREN }
    const page = await call('get', '/api/v2/runs/{run_id}/timeline', { path: { run_id: this.runId }, query })
    if (this.stopped) return
    addSpans(this.model, page.spans, id)
    span.rest = page.next_cursor === null ? undefined : { cursor: page.next_cursor, total }
    this.notify()
  }

  /** Read what was said in a step of a long run. */
  async readConversation(path: string): Promise<void> {
    const page = await call('get', '/api/v2/runs/{run_id}/events', {
      path: { run_id: this.runId },
      query: { path_prefix: path, type: SPOKEN_TYPES, limit: PAGE, max_value_bytes: MAX_VALUE_BYTES },
    })
    if (this.stopped) return
    applySpoken(this.model, path, page.events as unknown as RunEvent[])
    this.notify()
  }

  /** Follow the run. Called again when an ended run was revived. */
  follow(): void {
    if (this.stopped) return
    this.stopStream?.()
    this.stopStream = followRun(this.runId, this.model.last, {
      onEvents: (events) => {
        const changed = applyEvents(this.model, events)
        this.lastSeq = Math.max(this.lastSeq, this.model.last)
        if (changed) this.notify()
      },
      onConnected: (connected) => {
        if (connected === this.connected) return
        this.connected = connected
        this.notify()
      },
    })
  }

  stop(): void {
    this.stopped = true
    this.stopStream?.()
  }
}
