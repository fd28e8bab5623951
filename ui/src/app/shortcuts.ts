/* Keyboard: Ctrl-K or Cmd-K for the palette, ? for help, g and a letter for a page. */
import { useEffect, useState } from 'react'
import { useLocation } from 'wouter'
import { allowedItems } from './navigation'
import { useSession } from './session'

export type FrameDialog = 'palette' | 'help' | null

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
}

export function useShortcuts() {
  const [dialog, setDialog] = useState<FrameDialog>(null)
  const [, navigate] = useLocation()
  const { may } = useSession()
  useEffect(() => {
    let afterG = 0
    const listen = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
        event.preventDefault()
        setDialog((open) => (open === 'palette' ? null : 'palette'))
        return
      }
      if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return
      if (document.querySelector('dialog[open]') !== null) return
      if (event.key === '?') setDialog('help')
      if (Date.now() - afterG < 1_500) {
        const item = allowedItems(may)
          .flat()
          .find((candidate) => candidate.key === event.key)
        if (item !== undefined) {
          event.preventDefault()
          navigate(item.path)
        }
      }
      afterG = event.key === 'g' ? Date.now() : 0
    }
    document.addEventListener('keydown', listen)
    return () => document.removeEventListener('keydown', listen)
  }, [may, navigate])
  return { dialog, setDialog }
}
