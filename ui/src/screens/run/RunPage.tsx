/* A run: what it is, why it waits, and everything that happened. */
import { SearchX } from 'lucide-react'
import { useState } from 'react'
import { useParams } from 'wouter'
import { useApi } from '@/api/query'
import { hasSteps, type Run, targetParts } from '@/api/types'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { shortId } from '@/format/text'
import { ButtonLink } from '@/parts/Button'
import { Empty } from '@/parts/Empty'
import { ErrorBoundary } from '@/parts/ErrorBoundary'
import { lazily } from '@/parts/lazily'
import { Loaded } from '@/parts/Loading'
import { type Tab, Tabs } from '@/parts/Tabs'
import { AttemptsTab } from './attempts/AttemptsTab'
import { ConversationTab } from './conversation/ConversationTab'
import { EventsTab } from './events/EventsTab'
import { LogsTab } from './events/LogsTab'
import { firstTab } from './firstTab'
import { RunHeader } from './header/RunHeader'
import { InputResultTab } from './InputResultTab'
import { Inspector } from './inspector/Inspector'
import type { RunStore } from './model/store'
import { useRunModel } from './model/useRunModel'
import { IncompleteBar, StreamBar, TruncatedBar } from './RunBars'
import { StateTab } from './state/StateTab'
import { TimelineTab } from './timeline/TimelineTab'

const GraphTab = lazily(() => import('./graph/GraphTab'))

function tabsOf(run: Run, store: RunStore): Tab[] {
  const steps = hasSteps(run.target)
  const tabs: (Tab | false)[] = [
    { id: 'timeline', label: 'Timeline' },
    targetParts(run.target).kind === 'orchestration' && { id: 'graph', label: 'Graph' },
    steps && { id: 'conversation', label: 'Conversation', count: store.model.conversations.size },
    { id: 'events', label: 'Events', count: run.last_seq },
    steps && { id: 'state', label: 'State' },
    { id: 'attempts', label: 'Attempts', count: run.attempt },
    { id: 'io', label: 'Input and result' },
    { id: 'logs', label: 'Logs' },
  ]
  return tabs.filter((tab) => tab !== false)
}

function Body({ run, store, tab, span, onSelect }: { run: Run; store: RunStore; tab: string; span: string | null; onSelect: (span: string | null) => void }) {
  if (tab === 'graph') return <GraphTab run={run} selected={span} onSelect={onSelect} />
  if (tab === 'conversation') return <ConversationTab run={run} store={store} selected={span} onSelect={onSelect} />
  if (tab === 'events') return <EventsTab run={run} store={store} />
  if (tab === 'state') return <StateTab run={run} />
  if (tab === 'attempts') return <AttemptsTab run={run} />
  if (tab === 'io') return <InputResultTab run={run} />
  if (tab === 'logs') return <LogsTab run={run} store={store} />
  return <TimelineTab run={run} store={store} selected={span} onSelect={onSelect} />
}

function OpenRun({ run }: { run: Run }) {
  const address = useAddress()
  const store = useRunModel(run.run_id, run.status, run.last_seq)
  const tabs = tabsOf(run, store)
  const wanted = address.get('tab')
  // Chosen when the page opens: a run that ends meanwhile does not change the view under the reader.
  const [first] = useState(() => firstTab(run))
  const selected = tabs.some((tab) => tab.id === wanted) ? wanted! : first
  const span = address.get('step')
  const onSelect = (id: string | null) => address.set({ step: id })
  useTitle(`${targetParts(run.target).name} ${shortId(run.run_id)}`)
  return (
    <div className="flex h-full min-h-0 flex-col max-md:h-auto">
      <RunHeader run={run} store={store} />
      <div className="px-3 md:px-4">
        <Tabs label="Views of the run" tabs={tabs} selected={selected} link={(id) => address.link({ tab: id })} />
      </div>
      <TruncatedBar store={store} />
      <IncompleteBar store={store} />
      <StreamBar store={store} />
      <div className="flex min-h-0 flex-1 max-md:flex-col">
        <section aria-label={tabs.find((tab) => tab.id === selected)?.label} className="min-h-0 min-w-0 flex-1 overflow-auto bg-surface max-md:min-h-[70dvh]">
          <ErrorBoundary key={selected} name="This view">
            <Body run={run} store={store} tab={selected} span={span} onSelect={onSelect} />
          </ErrorBoundary>
        </section>
        {span !== null && (selected === 'timeline' || selected === 'graph') && (
          <ErrorBoundary name="The inspector">
            <Inspector run={run} store={store} span={span} onClose={() => onSelect(null)} />
          </ErrorBoundary>
        )}
      </div>
    </div>
  )
}

function Missing({ runId }: { runId: string }) {
  const { info } = useSession()
  const days = info.retention?.runs_days
  return (
    <Empty icon={SearchX} title="This run does not exist" actions={<ButtonLink to="/runs">All runs</ButtonLink>}>
      <p>
        No run of your tenant has the id <code className="font-mono text-xs break-all">{runId}</code>.
      </p>
      {days !== undefined && <p>Ended runs are deleted after {days} days.</p>}
    </Empty>
  )
}

export default function RunPage() {
  const { runId = '' } = useParams<{ runId: string }>()
  const query = useApi('/api/v2/runs/{run_id}', { path: { run_id: runId } }, { topics: ['runs'], runId, keep: false })
  if (query.error?.status === 404 || query.error?.status === 422) return <Missing runId={runId} />
  return <Loaded query={query}>{(run) => <OpenRun key={runId} run={run as Run} />}</Loaded>
}
