/* The model of an open run: pages of events first, then its stream. Components read it; it notifies them once a frame. */
import { call } from '@/api/client'
import { followRun } from '@/live/runStream'
import { applyEvents } from './reduce'
import { emptyModel, type RunEvent, type RunModel } from './types'

const PAGE = 1_000
/** Events that are loaded without being asked for: enough for almost every run, little for a huge one. */
export const FIRST_LOAD = 4_000

export class RunStore {
  readonly runId: string
  model: RunModel = emptyModel()
  /** Changes with the model, so that React notices. */
  version = 0
  lastSeq = 0
  connected = true
  loading = true
  error: unknown = null
  private limit = FIRST_LOAD
  private listeners = new Set<() => void>()
  private stopStream: (() => void) | undefined
  private stopped = false

  constructor(runId: string) {
    this.runId = runId
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

  /** Whether events exist that are not loaded. */
  get incomplete(): boolean {
    return this.model.last < this.lastSeq && this.model.last >= this.limit
  }

  async start(): Promise<void> {
    this.stopped = false
    await this.load()
  }

  /** Load this many further events. */
  async more(count: number): Promise<void> {
    this.limit = this.model.last + count
    await this.load()
  }

  private async load(): Promise<void> {
    this.loading = true
    this.notify()
    try {
      do {
        const page = await call('get', '/api/v2/runs/{run_id}/events', { path: { run_id: this.runId }, query: { after: this.model.last, limit: PAGE } })
        if (this.stopped) return
        this.lastSeq = Math.max(this.lastSeq, page.last_seq)
        if (this.model.last === 0 && page.first_seq > 1) this.model = emptyModel(page.first_seq)
        applyEvents(this.model, page.events as unknown as RunEvent[])
        this.notify()
        if (page.count < PAGE) break
      } while (this.model.last < Math.min(this.limit, this.lastSeq))
      this.error = null
    } catch (error) {
      this.error = error
    }
    this.loading = false
    this.notify()
    if (!this.incomplete && this.error === null) this.follow()
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
