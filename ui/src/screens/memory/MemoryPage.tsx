/* One memory: its entries, a search in them, and its documents. */
import { Trash2 } from 'lucide-react'
import { useLocation, useParams } from 'wouter'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { formatCount } from '@/format/number'
import { visible } from '@/format/text'
import { request } from '@/parts/action/action'
import { ActionButton } from '@/parts/action/ActionButtons'
import { CopyIconButton } from '@/parts/Copy'
import { CopyRead } from '@/parts/CopyRead'
import { Loaded } from '@/parts/Loading'
import { Facts, Page, PageHeader, Panel } from '@/parts/Panel'
import { Tabs } from '@/parts/Tabs'
import { Time } from '@/parts/Time'
import { Documents } from './Documents'
import { Entries } from './Entries'
import { MemorySearch } from './MemorySearch'
import { MEMORY_LIVE } from './memoryLive'

type Memory = components['schemas']['Memory']

function View({ memory }: { memory: Memory }) {
  const { may } = useSession()
  const address = useAddress()
  const [, navigate] = useLocation()
  const tenant = useTenantParam()
  const tab = address.get('tab') ?? 'entries'
  return (
    <Page>
      <PageHeader title={visible(memory.title)} note={memory.description === '' ? undefined : visible(memory.description)}>
        {may('memory:admin') && (
          <ActionButton
            action={{
              id: 'delete-memory', label: 'Delete', icon: Trash2, danger: true, title: `Delete ${memory.title}`, verb: 'Delete the memory', typed: memory.title, done: 'The memory is deleted.', after: () => navigate('/memories'),
              consequence: 'Its entries and documents are deleted with it. They cannot be restored.',
              request: request('delete', '/api/v2/memory/memories/{memory_id}', { path: { memory_id: memory.id }, query: tenant as never, cli: asCli('memory', 'delete-memory', memory.id) }),
            }}
          />
        )}
        <CopyRead path={`/api/v2/memory/memories/${memory.id}/entries`} cli={asCli('memory', 'list-entries', memory.id)} />
      </PageHeader>
      <Panel>
        <Facts
          items={[
            ['Id', <span className="flex min-w-0 items-center gap-1" key="id"><code className="truncate font-mono text-xs" title={memory.id}>{memory.id}</code><CopyIconButton text={memory.id} label="Copy the id" /></span>],
            ['Type', visible(memory.memory_type)],
            ['Operations', formatCount(memory.last_seq)],
            ['Created', <Time key="created" at={memory.created_at} style="relative" />],
          ]}
        />
      </Panel>
      <Tabs label="Views of the memory" selected={tab} link={(id) => address.link({ tab: id === 'entries' ? null : id })} tabs={[{ id: 'entries', label: 'Entries' }, { id: 'search', label: 'Search' }, { id: 'documents', label: 'Documents' }]} />
      {tab === 'search' ? <MemorySearch memory={memory} /> : tab === 'documents' ? <Documents memory={memory} /> : <Entries memory={memory} />}
    </Page>
  )
}

export default function MemoryPage() {
  const { memoryId = '' } = useParams<{ memoryId: string }>()
  const query = useApi('/api/v2/memory/memories/{memory_id}', { path: { memory_id: memoryId }, query: useTenantParam() }, MEMORY_LIVE)
  useTitle(query.data?.title ?? 'Memory')
  return <Loaded query={query}>{(memory) => <View memory={memory} />}</Loaded>
}
