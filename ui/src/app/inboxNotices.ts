/* Desktop notifications about new questions, in a browser whose user has switched them on. They show no text of a run. */
import { useEffect, useRef } from 'react'
import type { ResponseOf } from '@/api/client'
import { plural } from '@/format/number'
import { getPreference, setPreference, usePreference } from './preferences'

type InboxCount = ResponseOf<'/api/v2/inbox/count', 'get'>

const SWITCH = 'inbox.notify'
/** The newest question that any tab of this browser has shown. */
const SHOWN = 'inbox.notified'
/** Notifications with one tag replace each other, so several tabs show one. */
const TAG = 'runlane-inbox'

/** Why this browser cannot show notifications; null if it can, or may ask its user. */
export function noticesRefused(): string | null {
  if (!('Notification' in window) || !window.isSecureContext) return 'Browsers show notifications only for pages over HTTPS or on this machine.'
  return Notification.permission === 'denied' ? 'The browser blocks notifications of this page. Allow them in its settings.' : null
}

export function useNotifies(): boolean {
  return usePreference(SWITCH, false)[0] && noticesRefused() === null
}

/** Switch notifications on, after the browser has asked its user, or off. Return whether they are on. */
export async function switchNotices(on: boolean): Promise<boolean> {
  const granted = on && noticesRefused() === null && (await Notification.requestPermission()) === 'granted'
  setPreference(SWITCH, granted)
  return granted
}

function looksAtInbox(): boolean {
  return document.visibilityState === 'visible' && document.hasFocus() && location.pathname.endsWith('/inbox')
}

function show(total: number): void {
  const notice = new Notification('Runlane', { body: `A new question waits for an answer; ${plural(total, 'question is', 'questions are')} open.`, tag: TAG })
  notice.onclick = () => {
    window.focus()
    if (!looksAtInbox()) location.assign(new URL('inbox', document.baseURI).href)
    notice.close()
  }
}

export function useInboxNotices(count: InboxCount | undefined): void {
  const on = useNotifies()
  const known = useRef<string | null | undefined>(undefined)
  useEffect(() => {
    if (count === undefined) return
    const newest = count.newest_at
    // What was open when the page was opened, or when notifications were off, is not new.
    const isNew = known.current !== undefined && newest !== null && (known.current === null || newest > known.current)
    if (known.current === undefined || isNew) known.current = newest
    if (!isNew || !on || newest <= getPreference(SHOWN, '')) return
    setPreference(SHOWN, newest)
    if (!looksAtInbox()) show(count.total)
  }, [count, on])
}
