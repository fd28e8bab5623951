/* A search in the entries of a memory. Typing does not search; Enter does. */
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { call, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import type { components } from '@/api/schema'
import { useAddress } from '@/app/address'
import { useTenantParam } from '@/app/tenant'
import { Button } from '@/parts/Button'
import { Empty } from '@/parts/Empty'
import { TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { EntryView } from './Entries'

type Memory = components['schemas']['Memory']
type Hits = ResponseOf<'/api/v2/memory/memories/{memory_id}/search', 'post'>
const HITS = 25

export function MemorySearch({ memory }: { memory: Memory }) {
  const address = useAddress()
  const tenant = useTenantParam()
  const words = address.get('q') ?? ''
  const [draft, setDraft] = useState(words)
  const query = useQuery<Hits, ApiError>({
    queryKey: ['memory-search', memory.id, tenant, words],
    queryFn: ({ signal }) => call('post', '/api/v2/memory/memories/{memory_id}/search', { path: { memory_id: memory.id }, query: tenant as never, body: { query: words, limit: HITS } as never, signal }),
    enabled: words !== '',
    meta: {},
  })
  return (
    <section className="rounded-lg border border-line bg-surface">
      <form
        className="flex gap-2 border-b border-line p-2"
        onSubmit={(event) => {
          event.preventDefault()
          address.set({ q: draft.trim() || null })
        }}
      >
        <TextInput type="search" aria-label="Words in entries" placeholder="Words in entries" value={draft} onChange={(event) => setDraft(event.target.value)} />
        <Button type="submit">Search</Button>
      </form>
      {words === '' ? (
        <Empty title="Search in this memory">Entries are found by their words, and by their meaning where embeddings are configured.</Empty>
      ) : (
        <Loaded query={query}>
          {({ hits }) => hits.length === 0 ? <Empty title="No entry matches">Other words may find it.</Empty> : <ul aria-label="Found entries" className="divide-y divide-line">{hits.map((hit) => <EntryView key={hit.entry.id} entry={hit.entry} note={`found by ${hit.found_by.join(' and ')}`} />)}</ul>}
        </Loaded>
      )}
    </section>
  )
}
