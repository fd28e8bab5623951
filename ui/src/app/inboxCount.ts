/* How many questions wait for a person, for the badge and the title of the browser tab. */
import { useEffect } from 'react'
import { useApi } from '@/api/query'

export function useInboxCount(): string | null {
  const query = useApi('/api/v2/inbox', { query: { limit: 100 } }, { topics: ['inbox'], staleMs: 5_000 })
  const count = query.data?.questions.length ?? 0
  const text = count === 0 ? null : query.data?.next_cursor ? '100+' : String(count)
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
