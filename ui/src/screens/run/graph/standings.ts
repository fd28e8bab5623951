/* What the run has done with each step, and which step is selected. Nodes subscribe to their own step, so an event
repaints only what changed. */
import { createContext, use, useSyncExternalStore } from 'react'

export interface Standing {
  executions: number
  running: number
  waiting: number
  failed: number
  outcome: string
  tries: number
  cost_usd?: number | null
  last_path: string
}

export class Standings {
  private byId = new Map<string, Standing>()
  private selected: string | null = null
  private listeners = new Map<string, Set<() => void>>()

  get(id: string): Standing | undefined {
    return this.byId.get(id)
  }

  update(next: Record<string, Standing>): void {
    for (const [id, standing] of Object.entries(next)) {
      if (JSON.stringify(this.byId.get(id)) === JSON.stringify(standing)) continue
      this.byId.set(id, standing)
      for (const listener of this.listeners.get(id) ?? []) listener()
    }
  }

  isSelected(id: string): boolean {
    return this.selected === id
  }

  select(id: string | null): void {
    const before = this.selected
    if (before === id) return
    this.selected = id
    for (const changed of [before, id]) for (const listener of this.listeners.get(changed ?? '') ?? []) listener()
  }

  subscribe(id: string, listener: () => void): () => void {
    const set = this.listeners.get(id) ?? new Set()
    set.add(listener)
    this.listeners.set(id, set)
    return () => set.delete(listener)
  }
}

export const StandingsContext = createContext<Standings>(new Standings())

export function useStanding(id: string): Standing | undefined {
  const standings = use(StandingsContext)
  return useSyncExternalStore(
    (listener) => standings.subscribe(id, listener),
    () => standings.get(id),
  )
}

export function useSelected(id: string): boolean {
  const standings = use(StandingsContext)
  return useSyncExternalStore(
    (listener) => standings.subscribe(id, listener),
    () => standings.isSelected(id),
  )
}

/** The status that a node shows. */
export function shownOutcome(standing: Standing | undefined): string | null {
  if (standing === undefined || standing.executions === 0) return null
  if (standing.waiting > 0) return 'waiting'
  if (standing.running > 0) return standing.outcome === 'retrying' ? 'retrying' : 'running'
  return standing.outcome
}
