/* How many questions wait for a person, for the badge and the title of the browser tab. */
import { useEffect } from 'react'
import { useApi } from '@/api/query'
import { useInboxNotices, useNotifies } from './inboxNotices'
import { useTenantParam } from './tenant'

/** A hidden page has no live stream after a minute, and a notification is for just then. */
const HIDDEN_POLL = { pollMs: 30_000, background: true } as const

export function useInboxCount(): string | null {
  const tenant = useTenantParam()
  const query = useApi('/api/v2/inbox/count', { query: tenant }, { topics: ['inbox'], staleMs: 5_000, ...(useNotifies() ? HIDDEN_POLL : {}) })
  useInboxNotices(query.data)
  const total = query.data?.total ?? 0
  const text = total === 0 ? null : `${total}${query.data?.exact === false ? '+' : ''}`
  useEffect(() => {
    document.title = document.title.replace(/^(\(\d+\+?\) )?/, text === null ? '' : `(${text}) `)
  }, [text])
  return text
}

/** Set the title of the browser tab; the number of open questions stays in front. */
export function useTitle(title: string): void {
  useEffect(() => {
    const count = /^\(\d+\+?\) /.exec(document.title)?.[0] ?? ''
    document.title = `${count}${title} · Runlane`
  }, [title])
}
