/* All definitions, kind by kind. */
import { FilePlus } from 'lucide-react'
import { useApi } from '@/api/query'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { formatPercent, formatShort, plural } from '@/format/number'
import { oneLine, signatureText, visible } from '@/format/text'
import { ButtonLink } from '@/parts/Button'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Page, PageHeader } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Tabs } from '@/parts/Tabs'
import { Time } from '@/parts/Time'
import { isKind, type Kind, KINDS, targetOfDefinition } from './kinds'
import { type TargetFigures, useTargetFigures } from './targetFigures'
import { type Summary, useDefinitionList, useUserCounts } from './useDefinitions'

const BASE: Column<Summary>[] = [
  { id: 'id', title: 'Id', width: 140, grow: true, fixed: true, render: (row) => <span className="font-medium">{visible(row.id)}</span> },
  { id: 'name', title: 'Name', width: 140, grow: true, render: (row) => visible(row.name) },
  { id: 'about', title: 'Description', width: 200, grow: true, wideOnly: true, render: (row) => <span className="text-soft">{oneLine(row.description, 140)}</span> },
  { id: 'version', title: 'Version', width: 84, render: (row) => <code className="font-mono text-xs text-soft" title={row.version}>{row.version.slice(0, 8)}</code> },
  { id: 'updated', title: 'Changed', width: 84, render: (row) => <Time at={row.updated_at} style="relative" /> },
  { id: 'source', title: 'Source', width: 100, wideOnly: true, render: (row) => <span className="text-soft" title={row.origin}>{row.source ?? row.origin}</span> },
]

/** With the runs of the last 24 hours, for kinds that runs execute. */
function columnsOf(kind: Kind, runs: ReadonlyMap<string, TargetFigures> | null, users: Record<string, number> | undefined): Column<Summary>[] {
  const used: Column<Summary> = {
    id: 'used', title: 'Used by', width: 72, align: 'right', wideOnly: true,
    render: (row) => (users === undefined ? <span className="text-faint">–</span> : <span className="tabular text-soft">{formatShort(users[row.id] ?? 0)}</span>),
  }
  if (targetOfDefinition(kind, '') === null) return [...BASE.slice(0, 3), used, ...BASE.slice(3)]
  const figures: Column<Summary> = {
    id: 'runs', title: 'Runs in 24 h', width: 120, align: 'right', wideOnly: true,
    render: (row) => {
      const found = runs?.get(targetOfDefinition(kind, row.id) ?? '')
      if (found === undefined) return <span className="text-faint">–</span>
      return <span className="tabular text-soft">{formatShort(found.accepted)}{found.failed > 0 && <span className="text-bad"> · {formatPercent(found.failed / Math.max(1, found.ended))} failed</span>}</span>
    },
  }
  return [...BASE.slice(0, 3), used, figures, ...BASE.slice(3)]
}

function DefinitionTable({ kind, text }: { kind: Kind; text: string }) {
  const { query, rows, more } = useDefinitionList(kind)
  const runs = useTargetFigures()
  const users = useUserCounts(kind)
  const shown = rows.filter((row) => `${row.id} ${row.name} ${row.description}`.toLowerCase().includes(text.toLowerCase()))
  const { title, about, icon } = KINDS[kind]
  return (
    <Loaded query={query}>
      {() =>
        rows.length === 0 ? (
          <Empty icon={icon} title={`No ${title.toLowerCase()} exist yet`} command="runlane sync --dir definitions">
            {about} Definitions are JSON files in a folder; sync stores a new version of what has changed.
          </Empty>
        ) : shown.length === 0 ? (
          <Empty title="No definition matches">Clear the search to see all {rows.length}.</Empty>
        ) : (
          <Table<Summary> name={`definitions.${kind}`} label={title} columns={columnsOf(kind, runs, users)} rows={shown} id={(row) => row.id} link={(row) => `/definitions/${kind}/${encodeURIComponent(row.id)}`} footer={<span>{shown.length} of {rows.length}{more ? '; more exist' : ''}</span>} />
        )
      }
    </Loaded>
  )
}

function Tasks({ text }: { text: string }) {
  const query = useApi('/api/v2/tasks', {}, { topics: ['definitions'] })
  return (
    <Loaded query={query}>
      {({ tasks }) => {
        const shown = tasks.filter((task) => `${task.name} ${task.description}`.toLowerCase().includes(text.toLowerCase()))
        if (shown.length === 0) return <Empty title={tasks.length === 0 ? 'The server has no tasks' : 'No task matches'} command="runlane serve app:app">A task is a Python function that is registered with @app.task. Pass the module to the server and the workers.</Empty>
        return (
          <Table<(typeof tasks)[number]>
            name="definitions.tasks" label="Tasks" rows={shown} id={(task) => task.name} link={(task) => `/start?target=${encodeURIComponent(task.name)}`} footer={<span>{plural(shown.length, 'task')}. A row starts a run.</span>}
            columns={[
              { id: 'name', title: 'Task', width: 120, grow: true, fixed: true, render: (task) => <span className="font-medium">{task.name}</span> },
              { id: 'signature', title: 'Signature', width: 280, grow: true, render: (task) => <code className="font-mono text-xs text-soft">{oneLine(signatureText(task.signature), 160)}</code> },
              { id: 'lane', title: 'Lane', width: 90, render: (task) => <span className="text-soft">{task.lane}</span> },
              { id: 'attempts', title: 'Attempts', width: 80, align: 'right', wideOnly: true, render: (task) => <span className="tabular text-soft">{task.max_attempts}</span> },
              { id: 'about', title: 'Description', width: 200, grow: true, wideOnly: true, render: (task) => <span className="text-soft">{oneLine(task.description, 120)}</span> },
            ]}
          />
        )
      }}
    </Loaded>
  )
}

export default function DefinitionsPage() {
  useTitle('Definitions')
  const address = useAddress()
  const { may } = useSession()
  const chosen = address.get('kind') ?? 'orchestrations'
  const kind = isKind(chosen) ? chosen : null
  const text = address.get('text') ?? ''
  return (
    <Page fill>
      <PageHeader title="Definitions" note="What runs execute. A run stays on the versions that it was started with.">
        <TextInput type="search" aria-label="Search definitions" placeholder="Search" className="w-44!" value={text} onChange={(event) => address.set({ text: event.target.value || null })} />
        {kind !== null && may('definitions:write') && <ButtonLink to={`/definitions/${kind}/new/edit`} icon={FilePlus}>New {KINDS[kind].one.replace('_', ' ')}</ButtonLink>}
        <CopyRead path={`/api/v2/${chosen}`} cli={asCli('validate')} />
      </PageHeader>
      <Tabs label="Kinds of definitions" selected={chosen} link={(id) => address.link({ kind: id })} tabs={[...Object.entries(KINDS).map(([id, { title }]) => ({ id, label: title })), { id: 'tasks', label: 'Tasks' }]} />
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">
        {kind === null ? <Tasks text={text} /> : <DefinitionTable key={kind} kind={kind} text={text} />}
      </section>
    </Page>
  )
}
