/* Threads: the state of graphs and agents over several runs; and the assistants that run in them. */
import { Split, Waypoints } from 'lucide-react'
import { useState } from 'react'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { plural } from '@/format/number'
import { oneLine, shortId, visible } from '@/format/text'
import { Button } from '@/parts/Button'
import { Empty } from '@/parts/Empty'
import { Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Page, PageHeader } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Tabs } from '@/parts/Tabs'
import { Time } from '@/parts/Time'
import { type Assistant, interruptsOf, PAGE, textOf, type Thread, useAgentServer } from './agentServer'
import { asCurl } from '@/format/command'

const STATUSES: [string, string][] = [['', 'Any status'], ['idle', 'Idle'], ['busy', 'Busy'], ['interrupted', 'Interrupted'], ['error', 'Error']]

const THREADS: Column<Thread>[] = [
  { id: 'status', title: 'Status', width: 120, fixed: true, render: (thread) => <Status value={thread.status} /> },
  { id: 'id', title: 'Thread', width: 150, render: (thread) => <code className="font-mono text-xs">{shortId(thread.thread_id)}</code> },
  { id: 'graph', title: 'Assistant', width: 160, render: (thread) => <span className="text-soft">{visible(String(thread.metadata.graph_id ?? thread.metadata.assistant_id ?? ''))}</span> },
  { id: 'question', title: 'Question', width: 260, grow: true, wideOnly: true, render: (thread) => <span className="text-soft">{oneLine(interruptsOf(thread).map((found) => textOf(found.value)).join(' '), 160)}</span> },
  { id: 'updated', title: 'Changed', width: 110, render: (thread) => <Time at={thread.updated_at} style="relative" /> },
  { id: 'created', title: 'Created', width: 110, wideOnly: true, render: (thread) => <Time at={thread.created_at} style="relative" /> },
]

const ASSISTANTS: Column<Assistant>[] = [
  { id: 'name', title: 'Assistant', width: 200, grow: true, fixed: true, render: (found) => <span className="font-medium">{visible(found.name)}</span> },
  { id: 'graph', title: 'Graph', width: 180, render: (found) => <code className="font-mono text-xs">{visible(found.graph_id)}</code> },
  { id: 'about', title: 'About', width: 260, grow: true, wideOnly: true, render: (found) => <span className="text-soft">{oneLine(found.description ?? '', 160)}</span> },
  { id: 'version', title: 'Version', width: 80, align: 'right', render: (found) => <span className="tabular">{found.version}</span> },
  { id: 'updated', title: 'Changed', width: 110, render: (found) => <Time at={found.updated_at} style="relative" /> },
]

function More({ count, limit, noun, onMore }: { count: number; limit: number; noun: string; onMore: () => void }) {
  if (count < limit) return <span>{plural(count, noun)}, no more exist.</span>
  return (
    <>
      <Button small onClick={onMore}>Load more</Button>
      <span>{plural(count, noun)} loaded; more may exist.</span>
    </>
  )
}

function Threads() {
  const address = useAddress()
  const status = address.get('status') ?? ''
  const [limit, setLimit] = useState(PAGE)
  const query = useAgentServer<Thread[]>('/threads/search', { limit, ...(status === '' ? {} : { status }) })
  return (
    <>
      <div className="border-b border-line p-2">
        <Select aria-label="Status" value={status} options={STATUSES} onChange={(event) => address.set({ status: event.target.value || null })} />
      </div>
      <Loaded query={query}>
        {(threads) => threads.length === 0 ? (
          <Empty icon={Waypoints} title={status === '' ? 'No thread exists' : 'No thread has this status'} command={asCurl('post', '/threads', {})}>
            A thread keeps the state of a graph or an agent over several runs, with a checkpoint after each step. LangGraph's clients create them.
          </Empty>
        ) : (
          <Table<Thread> name="threads" label="Threads" columns={THREADS} rows={threads} id={(thread) => thread.thread_id} link={(thread) => `/threads/${thread.thread_id}`} footer={<More count={threads.length} limit={limit} noun="thread" onMore={() => setLimit(Math.min(1_000, limit + PAGE))} />} />
        )}
      </Loaded>
    </>
  )
}

function Assistants() {
  const [limit, setLimit] = useState(PAGE)
  const query = useAgentServer<Assistant[]>('/assistants/search', { limit })
  return (
    <Loaded query={query}>
      {(assistants) => assistants.length === 0 ? (
        <Empty icon={Split} title="No assistant exists">Each agent definition and each graph of langgraph.json is an assistant.</Empty>
      ) : (
        <Table<Assistant> name="assistants" label="Assistants" columns={ASSISTANTS} rows={assistants} id={(found) => found.assistant_id} footer={<More count={assistants.length} limit={limit} noun="assistant" onMore={() => setLimit(Math.min(1_000, limit + PAGE))} />} />
      )}
    </Loaded>
  )
}

export default function ThreadsPage() {
  useTitle('Threads')
  const address = useAddress()
  const tab = address.get('tab') ?? 'threads'
  return (
    <Page fill>
      <PageHeader title="Threads" note="The state of hosted graphs and agents over several runs." />
      <Tabs label="Threads and assistants" selected={tab} link={(id) => address.link({ tab: id === 'threads' ? null : id, status: null })} tabs={[{ id: 'threads', label: 'Threads' }, { id: 'assistants', label: 'Assistants' }]} />
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">{tab === 'assistants' ? <Assistants /> : <Threads />}</section>
    </Page>
  )
}
