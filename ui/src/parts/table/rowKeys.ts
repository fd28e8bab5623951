/* Rows by keyboard: j and k or the arrows move, Enter opens, x selects. */
import { type KeyboardEvent, type RefObject, useState } from 'react'

export function useRowKeys(scroller: RefObject<HTMLDivElement | null>, count: number, show: (index: number) => void, select: (index: number) => void) {
  const [active, setActive] = useState(-1)
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target instanceof HTMLInputElement && event.target.type !== 'checkbox') return
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const steps: Record<string, number> = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 15, PageUp: -15 }
    const by = steps[event.key]
    if (by !== undefined || event.key === 'Home' || event.key === 'End') {
      event.preventDefault()
      const to = event.key === 'Home' ? 0 : event.key === 'End' ? count - 1 : active + (by ?? 0)
      const next = Math.max(0, Math.min(count - 1, to))
      setActive(next)
      show(next)
    } else if (event.key === 'Enter' && event.target === scroller.current) {
      scroller.current?.querySelector<HTMLElement>(`[data-index="${active}"] [data-row-link]`)?.click()
    } else if (event.key === 'x' && active >= 0) {
      select(active)
    }
  }
  return { active, onKeyDown }
}
