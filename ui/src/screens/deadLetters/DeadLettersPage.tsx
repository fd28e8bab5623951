/* Runs that failed for good: grouped by cause, or one by one. */
import { useState } from 'react'
import type { components } from '@/api/schema'
import { type Address, useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { oneLine, shortId } from '@/format/text'
import { useHold } from '@/live/refresh'
import { Button } from '@/parts/Button'
import { cx } from '@/parts/classes'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Select, TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { PagesFooter, usePages } from '@/parts/pages'
import { Page, PageHeader } from '@/parts/Panel'
import { Tabs } from '@/parts/Tabs'
import type { Column } from '@/parts/table/columns'
import { useSelection } from '@/parts/table/selection'
import { Table } from '@/parts/table/Table'
import { Time } from '@/parts/Time'
import { Target } from '@/screens/runs/runColumns'
import { Groups } from './Groups'
import { LETTER_ACTIONS, type LetterAction, type LetterFilter } from './letterBulk'
import { LetterBulkDialog } from './LetterBulkDialog'
import { LETTER_STATES, type LetterStateName, OPEN_LETTERS } from './letterText'

type Letter = components['schemas']['DeadLetterSummary']

export function LetterState({ state }: { state: string }) {
  const text = LETTER_STATES[state]
  return <Chip tone={text?.tone ?? 'idle'} title={text?.meaning}>{text?.word ?? state}</Chip>
}

const COLUMNS: Column<Letter>[] = [
  { id: 'target', title: 'Target', width: 140, fixed: true, render: (letter) => <Target target={letter.target} /> },
  { id: 'state', title: 'State', width: 104, render: (letter) => <LetterState state={letter.state} /> },
  { id: 'message', title: 'Error', width: 220, grow: true, render: (letter) => <span title={oneLine(letter.message, 500)}>{oneLine(letter.message, 200)}</span> },
  { id: 'code', title: 'Code', width: 110, wideOnly: true, render: (letter) => <code className="font-mono text-xs text-soft">{letter.code}</code> },
  { id: 'step', title: 'Step', width: 84, wideOnly: true, render: (letter) => <span className="text-soft">{letter.last_step ?? '–'}</span> },
  { id: 'died', title: 'Died', width: 80, render: (letter) => <Time at={letter.died_at} style="relative" /> },
  { id: 'times', title: 'Times', width: 56, align: 'right', wideOnly: true, render: (letter) => <span className="tabular text-soft">{letter.times_died}</span> },
  { id: 'owner', title: 'Owner', width: 90, wideOnly: true, render: (letter) => <span className="text-soft">{letter.assigned_to ?? ''}</span> },
  { id: 'run', title: 'Run', width: 84, render: (letter) => <code title={letter.run_id} className="font-mono text-xs text-soft">{shortId(letter.run_id)}</code> },
]

const TEXT_FILTERS: [string, string][] = [['target', 'Target'], ['code', 'Code'], ['lane', 'Lane'], ['step', 'Step'], ['assigned_to', 'Owner'], ['text', 'Text']]

export function readFilter(address: Address, tenant: { tenant?: string }): LetterFilter {
  const states = address.all('state') as LetterStateName[]
  const filter: LetterFilter = { state: states.length === 0 ? [...OPEN_LETTERS] : states, ...tenant }
  for (const [name] of [...TEXT_FILTERS, ['fingerprint', '']] as [keyof LetterFilter, string][]) {
    const value = address.get(name)
    if (value !== null) Object.assign(filter, { [name]: value })
  }
  return filter
}

function Filters({ address }: { address: Address }) {
  const used = TEXT_FILTERS.some(([name]) => address.get(name) !== null)
  const [all, setAll] = useState(used)
  return (
    <div role="search" aria-label="Filter dead letters" className="flex flex-wrap items-center gap-1.5">
      <Select aria-label="State" value={address.get('state') ?? ''} options={[['', 'Open or acknowledged'], ...Object.entries(LETTER_STATES).map(([state, { word }]) => [state, word] as [string, string])]} onChange={(event) => address.set({ state: event.target.value || null }, { push: true })} />
      {TEXT_FILTERS.map(([name, label]) => (
        <TextInput
          key={`${name} ${address.get(name) ?? ''}`}
          aria-label={label}
          placeholder={label}
          defaultValue={address.get(name) ?? ''}
          className={cx('w-32!', !all && 'max-md:hidden')}
          onKeyDown={(event) => event.key === 'Enter' && address.set({ [name]: event.currentTarget.value || null }, { push: true })}
          onBlur={(event) => event.target.value !== (address.get(name) ?? '') && address.set({ [name]: event.target.value || null }, { push: true })}
        />
      ))}
      {!all && <Button small className="md:hidden" onClick={() => setAll(true)}>More filters</Button>}
      {address.get('fingerprint') !== null && <Button small onClick={() => address.set({ fingerprint: null })}>One cause only · clear</Button>}
    </div>
  )
}

function Letters({ filter }: { filter: LetterFilter }) {
  const { may } = useSession()
  const selection = useSelection()
  const [act, setAct] = useState<LetterAction | null>(null)
  useHold(selection.ids.size > 0)
  const { query, pages } = usePages('/api/v2/dead-letters', { query: filter as never }, { topics: ['dead_letters'] })
  const letters = pages.flatMap((page) => page.dead_letters)
  const writes = may('runs:write')
  return (
    <>
      {selection.ids.size > 0 && (
        <div className="flex flex-wrap items-center gap-1.5 border-b border-line bg-accent-soft px-3 py-1.5">
          <span className="font-medium">{selection.ids.size} selected</span>
          {(Object.keys(LETTER_ACTIONS) as LetterAction[]).map((action) => <Button key={action} small icon={LETTER_ACTIONS[action].icon} onClick={() => setAct(action)}>{LETTER_ACTIONS[action].label}</Button>)}
          <Button small look="quiet" onClick={selection.clear}>Clear</Button>
        </div>
      )}
      <Loaded query={query}>
        {() =>
          letters.length === 0 ? (
            <Empty title="No dead letter matches">Change the state or the filters.</Empty>
          ) : (
            <Table<Letter> name="dead-letters" label="Dead letters" columns={COLUMNS} rows={letters} id={(letter) => letter.run_id} link={(letter) => `/dead-letters/${letter.run_id}`} selection={writes ? selection : undefined} footer={<PagesFooter query={query} count={letters.length} noun="dead letter" />} />
          )
        }
      </Loaded>
      {act !== null && <LetterBulkDialog action={act} selection={{ ids: [...selection.ids] }} what={`${selection.ids.size} selected`} onClose={() => setAct(null)} onStarted={selection.clear} />}
    </>
  )
}

export default function DeadLettersPage() {
  useTitle('Dead letters')
  const address = useAddress()
  const tenant = useTenantParam()
  const filter = readFilter(address, tenant)
  const view = address.get('view') ?? 'groups'
  return (
    <Page fill>
      <PageHeader title="Dead letters" note="Runs that failed after their last attempt. Nothing is lost: each keeps its input, steps and attempts.">
        <CopyRead path={view === 'groups' ? '/api/v2/dead-letters/groups' : '/api/v2/dead-letters'} cli={asCli('dead-letters', view)} />
      </PageHeader>
      <Filters address={address} />
      <Tabs label="Views of dead letters" selected={view} link={(id) => address.link({ view: id })} tabs={[{ id: 'groups', label: 'By cause' }, { id: 'list', label: 'One by one' }]} />
      <section className="flex min-h-0 flex-1 flex-col overflow-y-auto rounded-lg border border-line bg-surface">
        {view === 'groups' ? <Groups address={address} filter={filter} /> : <Letters filter={filter} />}
      </section>
    </Page>
  )
}
