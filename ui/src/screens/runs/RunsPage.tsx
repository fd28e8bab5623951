/* The list of runs. */
import { Activity, ArrowUp, Copy, Link as LinkIcon, Play } from 'lucide-react'
import { useCallback, useEffect, useMemo, useRef } from 'react'
import type { RunSummary } from '@/api/types'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { plural } from '@/format/number'
import { serverNow } from '@/format/time'
import { useHold } from '@/live/refresh'
import { ActionMenu } from '@/parts/action/ActionButtons'
import { Button, ButtonLink } from '@/parts/Button'
import { copyAndNotify } from '@/parts/Copy'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import type { MenuItem } from '@/parts/Menu'
import { Page, PageHeader } from '@/parts/Panel'
import { ColumnMenu } from '@/parts/table/ColumnMenu'
import { Time } from '@/parts/Time'
import { useSelection } from '@/parts/table/selection'
import { Table } from '@/parts/table/Table'
import { simpleActions } from '../run/runActions'
import { BulkBar } from './BulkBar'
import { ExportMenu } from './ExportMenu'
import { FilterBar } from './FilterBar'
import { readFilters, rootsOnly, type RunFilters, setFilters, toBulkFilter, toQuery, without, writeFilters } from './filters'
import { RUN_COLUMNS } from './runColumns'
import { SavedViews } from './SavedViews'
import { COUNT_LIMIT, useRunList } from './useRunList'

function NoRuns({ filters, onChange }: { filters: RunFilters; onChange: (filters: RunFilters) => void }) {
  const set = setFilters(filters)
  const wider = (
    <>
      {filters.window !== 'all' && filters.window !== '' && <Button onClick={() => onChange({ ...filters, window: 'all' })}>Search any time</Button>}
      {rootsOnly(filters) && <Button onClick={() => onChange({ ...filters, children: 'yes' })}>Include child runs</Button>}
    </>
  )
  if (set.length === 0) {
    return (
      <Empty icon={Activity} title={filters.window === 'all' ? 'No runs yet' : 'No run in this time window'} command="runlane run TASK --input '{}'" actions={<><ButtonLink to="/start">Start a run</ButtonLink>{wider}</>}>
        A run is one durable execution of a task, an orchestration or an agent. Start one here, from the command line, or over the API.
      </Empty>
    )
  }
  return (
    <Empty
      icon={Activity}
      title="No run matches"
      actions={
        <>
          {wider}
          {set.map((entry) => (
            <Button key={entry.name + entry.value} onClick={() => onChange(without(filters, entry))}>
              Clear {entry.label.toLowerCase()} {entry.value}
            </Button>
          ))}
        </>
      }
    >
      {filters.window === 'all' || filters.window === '' ? 'No run has all of these properties.' : `No run was accepted in the chosen window (${filters.window}) with these filters.`}
    </Empty>
  )
}

function copiesOf({ run_id }: RunSummary): MenuItem[] {
  return [
    { label: 'Copy the link', icon: LinkIcon, onSelect: () => copyAndNotify(new URL(`runs/${run_id}`, document.baseURI).href) },
    { label: 'Copy the id', icon: Copy, onSelect: () => copyAndNotify(run_id) },
  ]
}

interface MoreProps {
  onVisible: () => void
  busy: boolean
  truncated: boolean
  /** Older runs were not examined. */
  since: string | null
}

function More({ onVisible, busy, truncated, since }: MoreProps) {
  const ref = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && !busy && !truncated && onVisible())
    if (ref.current !== null) observer.observe(ref.current)
    return () => observer.disconnect()
  }, [onVisible, busy, truncated])
  return (
    <div ref={ref} className="flex items-center gap-2">
      <Button small onClick={onVisible} disabled={busy}>
        {busy ? 'Loading …' : truncated ? 'Search older runs' : 'Load more'}
      </Button>
      {truncated && <span>{since === null ? 'Enough runs were examined for one page' : <>Runs since <Time at={since} /> were examined</>}; older ones may match.</span>}
    </div>
  )
}

export function RunsPage() {
  useTitle('Runs')
  const address = useAddress()
  const { may } = useSession()
  const { tenant } = useTenantParam()
  const filters = useMemo(() => readFilters(address.params), [address.params])
  const query = useMemo(() => ({ ...toQuery(filters, serverNow()), tenant }), [filters, tenant])
  const selection = useSelection()
  const held = selection.ids.size > 0
  useHold(held)
  const { list, rows, truncated, since, fresh, showNew, cancel } = useRunList(query)
  const { set } = address
  const onChange = useCallback((next: RunFilters) => set(writeFilters(next), { push: true }), [set])
  const writes = may('runs:write')
  const { fetchNextPage } = list
  const more = useCallback(() => void fetchNextPage(), [fetchNextPage])
  return (
    <Page fill>
      <PageHeader title="Runs">
        <SavedViews />
        <ExportMenu query={query} rows={rows} />
        <ColumnMenu name="runs" columns={RUN_COLUMNS} />
        {writes && <ButtonLink look="main" icon={Play} to="/start">Start a run</ButtonLink>}
      </PageHeader>
      <FilterBar filters={filters} onChange={onChange} />
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">
        {held && writes && <BulkBar selection={selection} rows={rows} filter={toBulkFilter(filters, serverNow(), tenant)} />}
        {fresh > 0 && (
          <button type="button" onClick={showNew} className="flex h-7 shrink-0 items-center justify-center gap-1 border-b border-line bg-accent-soft font-medium text-accent">
            <ArrowUp size={14} aria-hidden />
            {fresh >= COUNT_LIMIT ? `${COUNT_LIMIT}+` : fresh} new {fresh === 1 ? 'run' : 'runs'}
          </button>
        )}
        <Loaded query={list} rows={12} onCancel={cancel}>
          {() =>
            rows.length === 0 && list.hasNextPage ? (
              <Empty icon={Activity} title="No run has matched yet" actions={<More onVisible={more} busy={list.isFetchingNextPage} truncated since={since} />} />
            ) : rows.length === 0 ? (
              <NoRuns filters={filters} onChange={onChange} />
            ) : (
              <Table<RunSummary>
                name="runs"
                label="Runs"
                columns={RUN_COLUMNS}
                rows={rows}
                id={(run) => run.run_id}
                link={(run) => `/runs/${run.run_id}`}
                selection={writes ? selection : undefined}
                actions={(run) => <ActionMenu label={`Actions of ${run.run_id}`} actions={writes ? simpleActions(run) : []} more={copiesOf(run)} />}
                footer={list.hasNextPage ? <More onVisible={more} busy={list.isFetchingNextPage} truncated={truncated} since={since} /> : <span>{plural(rows.length, 'run')}, no more match.</span>}
              />
            )
          }
        </Loaded>
      </section>
    </Page>
  )
}
