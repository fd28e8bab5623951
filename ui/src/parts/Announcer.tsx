/* The live region of the page. Announcements are spoken at most every five seconds, the latest one wins. */
import { useEffect, useState } from 'react'

const GAP_MS = 5_000
let show: ((text: string) => void) | undefined
let last = 0
let pending: ReturnType<typeof setTimeout> | undefined

export function announce(text: string): void {
  clearTimeout(pending)
  const wait = Math.max(0, last + GAP_MS - Date.now())
  pending = setTimeout(() => {
    last = Date.now()
    show?.(text)
  }, wait)
}

export function Announcer() {
  const [text, setText] = useState('')
  useEffect(() => {
    show = setText
    return () => {
      show = undefined
    }
  }, [])
  return (
    <div role="status" aria-live="polite" className="sr-only">
      {text}
    </div>
  )
}
