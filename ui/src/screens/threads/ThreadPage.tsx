/* One thread: what it asks, its state, the checkpoints before it, and its runs. */
import { Reply } from 'lucide-react'
import { Link, useParams } from 'wouter'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { shortId, visible } from '@/format/text'
import { field, FormAction } from '@/parts/action/FormAction'
import { CopyIconButton } from '@/parts/Copy'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { JsonView } from '@/parts/json/JsonView'
import { Loaded } from '@/parts/Loading'
import { Page, PageHeader, Panel } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import { Tabs } from '@/parts/Tabs'
import { Time } from '@/parts/Time'
import { agentRequest, type Checkpoint, type Interrupt, interruptsOf, textOf, type Thread, threadPath, type ThreadRun, useAgentServer } from './agentServer'

const HISTORY = 50

function Questions({ thread, runs }: { thread: Thread; runs: ThreadRun[] }) {
  const { may } = useSession()
  const open = interruptsOf(thread)
  const assistant = runs[0]?.assistant_id
  if (open.length === 0) return null
  return (
    <Panel title="Waits for an answer">
      <ul className="flex flex-col gap-3">
        {open.map((question: Interrupt, index) => (
          <li key={question.id ?? index} className="flex flex-wrap items-start justify-between gap-3">
            <div className="min-w-0 flex-1">{typeof question.value === 'string' ? <p className="break-words whitespace-pre-wrap">{visible(question.value)}</p> : <JsonView value={question.value} label="the question" openDepth={3} />}</div>
            {may('runs:write') && assistant !== undefined && (
              <FormAction
                label="Answer"
                icon={Reply}
                look="main"
                fields={[field('answer', 'Answer', { control: 'json', required: true, hint: 'JSON, such as "yes", true or {"type": "accept"}.' })]}
                build={(values) => ({
                  id: 'answer', label: 'Answer', icon: Reply, title: 'Answer the question', verb: 'Send the answer', done: 'The thread continues.',
                  consequence: <>A run of the assistant continues the thread with this answer to: {textOf(question.value).slice(0, 200)}</>,
                  request: agentRequest('post', threadPath(thread.thread_id, '/runs'), {
                    assistant_id: assistant,
                    command: { resume: question.id === undefined || open.length === 1 ? values.answer : { [question.id]: values.answer } },
                  }),
                })}
              />
            )}
          </li>
        ))}
      </ul>
    </Panel>
  )
}

function History({ id }: { id: string }) {
  const query = useAgentServer<Checkpoint[]>(threadPath(id, `/history?limit=${HISTORY}`))
  return (
    <Loaded query={query}>
      {(checkpoints) => checkpoints.length === 0 ? <Empty title="No checkpoint exists">A checkpoint is stored after each step of a run.</Empty> : (
        <ol aria-label="Checkpoints" className="divide-y divide-line">
          {checkpoints.map((found, index) => (
            <li key={found.checkpoint?.checkpoint_id ?? index} className="flex flex-col gap-1 px-3 py-2">
              <div className="flex flex-wrap gap-x-4 text-xs text-soft">
                {found.created_at !== null && <Time at={found.created_at} />}
                <code className="font-mono">{shortId(found.checkpoint?.checkpoint_id ?? '')}</code>
                <span>{found.next.length === 0 ? 'nothing follows' : `next: ${found.next.map(visible).join(', ')}`}</span>
              </div>
              <JsonView value={found.values} label="the state" openDepth={0} />
            </li>
          ))}
          {checkpoints.length === HISTORY && <li className="px-3 py-2 text-soft">The newest {HISTORY} are shown.</li>}
        </ol>
      )}
    </Loaded>
  )
}

function Runs({ runs }: { runs: ThreadRun[] }) {
  if (runs.length === 0) return <Empty title="This thread has no runs">A run is started with POST /threads/ID/runs.</Empty>
  return (
    <ul aria-label="Runs of the thread" className="divide-y divide-line">
      {runs.map((run) => (
        <li key={run.run_id} className="flex flex-wrap items-center gap-x-4 px-3 py-2">
          <Status value={run.status} />
          <Link href={`/runs/${run.run_id}`} className="font-mono text-xs text-accent underline">{shortId(run.run_id)}</Link>
          <span className="ml-auto text-soft"><Time at={run.created_at} style="relative" /></span>
        </li>
      ))}
    </ul>
  )
}

function View({ thread }: { thread: Thread }) {
  const address = useAddress()
  const tab = address.get('tab') ?? 'state'
  const runs = useAgentServer<ThreadRun[]>(threadPath(thread.thread_id, '/runs?limit=100'))
  return (
    <Page>
      <PageHeader title={<span className="inline-flex items-center gap-2">Thread <code className="font-mono text-base">{shortId(thread.thread_id)}</code><CopyIconButton text={thread.thread_id} label="Copy the id" /><Status value={thread.status} /></span>}>
        <CopyRead path={threadPath(thread.thread_id, '/state')} />
      </PageHeader>
      <Questions thread={thread} runs={runs.data ?? []} />
      <Tabs label="Views of the thread" selected={tab} link={(id) => address.link({ tab: id === 'state' ? null : id })} tabs={[{ id: 'state', label: 'State' }, { id: 'history', label: 'History' }, { id: 'runs', label: 'Runs', count: runs.data?.length }, { id: 'metadata', label: 'Metadata' }]} />
      <section className="rounded-lg border border-line bg-surface">
        {tab === 'history' ? <History id={thread.thread_id} /> : tab === 'runs' ? <Loaded query={runs}>{(found) => <Runs runs={found} />}</Loaded> : (
          <div className="p-3"><JsonView value={tab === 'metadata' ? thread.metadata : (thread.values ?? {})} label={tab === 'metadata' ? 'the metadata' : 'the state'} openDepth={3} /></div>
        )}
      </section>
    </Page>
  )
}

export default function ThreadPage() {
  const { threadId = '' } = useParams<{ threadId: string }>()
  const query = useAgentServer<Thread>(threadPath(threadId))
  useTitle(`Thread ${shortId(threadId)}`)
  return <Loaded query={query}>{(thread) => <View thread={thread} />}</Loaded>
}
