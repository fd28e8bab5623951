/* Memories of agents and people: what each is about, and how much it has. */
import { Brain, Plus } from 'lucide-react'
import type { components } from '@/api/schema'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { formatCount } from '@/format/number'
import { oneLine, shortId, visible } from '@/format/text'
import { request } from '@/parts/action/action'
import { field, FormAction } from '@/parts/action/FormAction'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { PagesFooter, usePages } from '@/parts/pages'
import { Page, PageHeader } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Time } from '@/parts/Time'
import { MEMORY_LIVE } from './memoryLive'

type Memory = components['schemas']['Memory']
type Vault = components['schemas']['Vault']

function columnsFor(vaults: ReadonlyMap<string, Vault>): Column<Memory>[] {
  return [
    { id: 'title', title: 'Memory', width: 220, grow: true, fixed: true, render: (memory) => <span className="font-medium">{visible(memory.title)}</span> },
    { id: 'about', title: 'About', width: 280, grow: true, wideOnly: true, render: (memory) => <span className="text-soft">{oneLine(memory.description, 160)}</span> },
    { id: 'vault', title: 'Vault', width: 160, render: (memory) => <span className="text-soft">{visible(vaults.get(memory.vault_id)?.title ?? shortId(memory.vault_id))}</span> },
    { id: 'type', title: 'Type', width: 120, wideOnly: true, render: (memory) => <span className="text-soft">{visible(memory.memory_type)}</span> },
    { id: 'operations', title: 'Operations', width: 100, align: 'right', render: (memory) => <span className="tabular">{formatCount(memory.last_seq)}</span> },
    { id: 'created', title: 'Created', width: 110, render: (memory) => <Time at={memory.created_at} style="relative" /> },
  ]
}

const FIELDS = [field('title', 'Title', { required: true, hint: 'Letters, digits and hyphens, such as customer-7.' }), field('description', 'About', { hint: 'What the memory is kept for.' })]

export default function MemoriesPage() {
  useTitle('Memories')
  const { may } = useSession()
  const address = useAddress()
  const tenant = useTenantParam()
  const vault = address.get('vault') ?? ''
  const vaults = usePages('/api/v2/memory/vaults', { query: tenant }, MEMORY_LIVE).pages.flatMap((page) => page.vaults)
  const { query, pages } = usePages('/api/v2/memory/memories', { query: { ...tenant, vault_id: vault || undefined } }, MEMORY_LIVE)
  const memories = pages.flatMap((page) => page.memories)
  return (
    <Page fill>
      <PageHeader title="Memories" note="What agents and people have kept: an ordered log of entries and its documents.">
        {vaults.length > 1 && (
          <Select aria-label="Vault" value={vault} options={[['', 'All vaults'], ...vaults.map((found) => [found.id, found.title] as [string, string])]} onChange={(event) => address.set({ vault: event.target.value || null })} />
        )}
        {may('memory:write') && (
          <FormAction
            label="New memory"
            icon={Plus}
            fields={FIELDS}
            build={(values) => ({
              id: 'create-memory', label: 'New memory', icon: Brain, title: 'Create a memory', verb: 'Create the memory', done: 'The memory is created.',
              consequence: 'It begins without entries and with an empty context document.',
              request: request('post', '/api/v2/memory/memories', {
                query: tenant as never,
                body: { title: String(values.title ?? ''), description: String(values.description ?? ''), ...(vault === '' ? {} : { vault_id: vault }) } as never,
                cli: asCli('memory', 'create-memory', String(values.title ?? 'TITLE')),
              }),
            })}
          />
        )}
        <CopyRead path="/api/v2/memory/memories" cli={asCli('memory', 'list-memories')} />
      </PageHeader>
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">
        <Loaded query={query}>
          {() => memories.length === 0 ? (
            <Empty icon={Brain} title={vault === '' ? 'No memory exists' : 'This vault has no memory'} command={'runlane memory create-memory customer-7'}>
              A memory keeps what an agent has learned over many runs. Entries are never changed; a correction is an entry of its own.
            </Empty>
          ) : (
            <Table<Memory> name="memories" label="Memories" columns={columnsFor(new Map(vaults.map((found) => [found.id, found])))} rows={memories} id={(memory) => memory.id} link={(memory) => `/memories/${memory.id}`} footer={<PagesFooter query={query} count={memories.length} noun="memory" many="memories" />} />
          )}
        </Loaded>
      </section>
    </Page>
  )
}
