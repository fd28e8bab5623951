/* Commands of the current page. A page registers them while it is shown; the palette lists them first. */
import type { LucideIcon } from 'lucide-react'
import { useEffect, useId } from 'react'

export interface PaletteCommand {
  label: string
  /** Further words that find it. */
  words?: string
  icon?: LucideIcon
  hint?: string
  onSelect: () => void
}

const registered = new Map<string, PaletteCommand[]>()

export function usePaletteCommands(commands: PaletteCommand[]): void {
  const id = useId()
  useEffect(() => {
    registered.set(id, commands)
    return () => {
      registered.delete(id)
    }
  })
}

export function pageCommands(): PaletteCommand[] {
  return [...registered.values()].flat()
}

const PREFIXES: [RegExp, (id: string) => string, string][] = [
  [/^run_[0-9a-f]{1,32}$/, (id) => `/runs/${id}`, 'Open the run'],
  [/^wrk_[0-9a-f]{1,32}$/, (id) => `/workers?worker=${id}`, 'Open the worker'],
  [/^sess_[0-9a-f]{1,32}$/, (id) => `/chat/${id}`, 'Open the conversation'],
  [/^blk_[0-9a-f]{1,32}$/, (id) => `/bulk/${id}`, 'Open the bulk job'],
]

/** What a pasted id leads to. */
export function pathOfId(text: string): { path: string; label: string } | null {
  const id = text.trim()
  for (const [pattern, path, label] of PREFIXES) if (pattern.test(id)) return { path: path(id), label: `${label} ${id}` }
  return null
}

/** The page of something that a search has found. */
export function pathOfHit(kind: string, id: string): string {
  const name = encodeURIComponent(id)
  const paths: Record<string, string> = {
    run: `/runs/${name}`,
    lane: `/lanes/${name}`,
    worker: `/workers?worker=${name}`,
    session: `/chat/${name}`,
    conversation: `/chat/${name}`,
    schedule: `/schedules/${name}`,
    task: `/runs?target=${name}&window=all&children=yes`,
  }
  return paths[kind] ?? `/definitions/${kind.replaceAll('_', '-')}s/${name}`
}
