/* What models cost: by day, agent and model; quotas; and the limits of providers. */
import { Coins } from 'lucide-react'
import { useMemo } from 'react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { type Address, useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { formatCost, formatCount, formatShort } from '@/format/number'
import { serverNow } from '@/format/time'
import { visible } from '@/format/text'
import { BarChart } from '@/parts/BarChart'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Meter } from '@/parts/Meter'
import { Page, PageHeader, Panel } from '@/parts/Panel'
import { Tabs } from '@/parts/Tabs'
import { ExpensiveRuns } from './ExpensiveRuns'
import { HourlyChart } from './HourlyChart'
import { ProviderLimits } from './ProviderLimits'

type Row = components['schemas']['UsageRow']

const DAY_MS = 86_400_000
const WINDOWS: [string, string][] = [['1', 'Today'], ['7', '7 days'], ['30', '30 days'], ['90', '90 days'], ['365', '1 year']]
const MEASURES: [string, string][] = [['cost', 'Cost'], ['tokens', 'Tokens'], ['calls', 'Calls']]

function dayOf(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10)
}

function measure(row: Row, name: string): number {
  if (name === 'tokens') return row.tokens_in + row.tokens_out
  return name === 'calls' ? row.calls : (row.cost_usd ?? 0)
}

function CostChart({ rows, first, last, name }: { rows: Row[]; first: string; last: string; name: string }) {
  const bars = useMemo(() => {
    const byDay = new Map(rows.map((row) => [row.key, measure(row, name)]))
    const days: { key: string; value: number }[] = []
    for (let at = Date.parse(first); at <= Date.parse(last); at += DAY_MS) days.push({ key: dayOf(at), value: byDay.get(dayOf(at)) ?? 0 })
    return days
  }, [rows, first, last, name])
  return <BarChart label={`${MEASURES.find(([id]) => id === name)?.[1] ?? name} per day, UTC`} bars={bars} format={name === 'cost' ? formatCost : formatShort} />
}

function UsageTable({ rows, total, head }: { rows: Row[]; total: Row; head: string }) {
  const most = Math.max(...rows.map((row) => row.cost_usd ?? 0), 0)
  return (
    <div className="overflow-x-auto" tabIndex={0} role="region" aria-label={`Usage by ${head.toLowerCase()}`}>
      <table className="w-full text-left">
        <thead><tr className="border-b border-line text-2xs text-faint">{[head, 'Cost', 'Calls', 'Tokens in', 'Tokens out', 'Unpriced calls'].map((title, index) => <th key={title} scope="col" className={`px-3 py-1.5 font-medium ${index > 1 ? 'text-right' : ''}`}>{title}</th>)}</tr></thead>
        <tbody>
          {[...rows, { ...total, key: 'Total' }].map((row, index) => (
            <tr key={`${row.key} ${index}`} className={`border-b border-line ${index === rows.length ? 'font-semibold' : ''}`}>
              <th scope="row" className="max-w-80 truncate px-3 py-1.5 font-medium">{row.key === '' ? 'Without an agent' : visible(row.key)}</th>
              <td className="px-3 py-1.5">{index === rows.length || most === 0 ? formatCost(row.cost_usd) : <Meter label={`Cost of ${row.key}`} value={row.cost_usd ?? 0} max={most} text={formatCost(row.cost_usd)} />}</td>
              <td className="tabular px-3 py-1.5 text-right">{formatCount(row.calls)}</td>
              <td className="tabular px-3 py-1.5 text-right">{formatCount(row.tokens_in)}</td>
              <td className="tabular px-3 py-1.5 text-right">{formatCount(row.tokens_out)}</td>
              <td className={`tabular px-3 py-1.5 text-right ${row.unpriced_calls > 0 ? 'text-wait' : ''}`}>{formatCount(row.unpriced_calls)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function Cost({ address }: { address: Address }) {
  const { platformAdmin } = useSession()
  const tenant = useTenantParam()
  const days = Number(address.get('days') ?? '30')
  const group = (address.get('by') ?? 'agent') as 'day' | 'agent' | 'model' | 'tenant'
  const name = address.get('measure') ?? 'cost'
  // Calls are not counted by the hour.
  const hourly = days === 1 && name !== 'calls'
  const range = { from: dayOf(serverNow() - (days - 1) * DAY_MS), to: dayOf(serverNow()), ...tenant }
  const daily = useApi('/api/v2/usage', { query: { ...range, group: 'day' } }, { topics: ['runs'], staleMs: 30_000, keep: true })
  const grouped = useApi('/api/v2/usage', { query: { ...range, group } }, { topics: ['runs'], staleMs: 30_000, keep: true })
  return (
    <>
      <div className="flex flex-wrap gap-1.5">
        <Select aria-label="Time range" value={String(days)} options={WINDOWS} onChange={(event) => address.set({ days: event.target.value })} />
        <Select aria-label="Measure" value={name} options={MEASURES} onChange={(event) => address.set({ measure: event.target.value })} />
        <Select aria-label="Group by" value={group} options={[['agent', 'By agent'], ['model', 'By model'], ['day', 'By day'], ...(platformAdmin ? [['tenant', 'By tenant'] as [string, string]] : [])]} onChange={(event) => address.set({ by: event.target.value })} />
      </div>
      <Panel title={`${MEASURES.find(([id]) => id === name)?.[1] ?? name} per ${hourly ? 'hour' : 'day'}`}>
        {hourly ? (
          <HourlyChart day={range.to} tokens={name === 'tokens'} />
        ) : (
          <Loaded query={daily} rows={5}>{(report) => <CostChart rows={report.usage} first={report.first} last={report.last} name={name} />}</Loaded>
        )}
      </Panel>
      <Panel flush title="Usage">
        <Loaded query={grouped}>
          {(report) => report.usage.length === 0
            ? <Empty icon={Coins} title="No model was called" command="runlane usage --group model">Each call of a model is counted with its tokens and its price. Calls of models without a known price are listed as unpriced.</Empty>
            : <UsageTable rows={report.usage} total={report.total} head={{ day: 'Day', agent: 'Agent', model: 'Model', tenant: 'Tenant' }[group]} />}
        </Loaded>
      </Panel>
      <ExpensiveRuns range={range} />
    </>
  )
}

function Quotas() {
  const query = useApi('/api/v2/quotas', { query: useTenantParam() }, { topics: ['limits'] })
  return (
    <Panel title="Quotas" flush>
      <Loaded query={query}>
        {({ quotas }) => (
          <ul className="divide-y divide-line">
            {quotas.map((quota) => (
              <li key={quota.name} className="grid grid-cols-[160px_1fr] items-center gap-x-4 gap-y-1 px-3 py-2 md:grid-cols-[160px_180px_1fr]">
                <span className="font-medium first-letter:uppercase" title={quota.name}>{quota.name.replace('_usd_', '_').replaceAll('_', ' ')}</span>
                {quota.used === null ? <span className="text-soft">{quota.limit === null ? 'no limit' : `at most ${formatCount(quota.limit)}`}</span> : <Meter label={quota.name} value={quota.used} max={quota.limit} tone={quota.limit !== null && quota.used >= quota.limit * 0.9 ? 'wait' : 'ok'} text={quota.limit === null ? `${formatCount(quota.used)}, no limit` : undefined} />}
                <span className="text-soft max-md:col-span-2">{quota.description}</span>
              </li>
            ))}
          </ul>
        )}
      </Loaded>
    </Panel>
  )
}

export default function UsagePage() {
  useTitle('Usage')
  const address = useAddress()
  const { platformAdmin } = useSession()
  const tab = address.get('tab') ?? 'cost'
  return (
    <Page>
      <PageHeader title="Usage" note="Cost, tokens and calls of models, and what bounds them."><CopyRead path="/api/v2/usage" cli={asCli('usage')} /></PageHeader>
      <Tabs label="Views of usage" selected={tab} link={(id) => address.link({ tab: id })} tabs={[{ id: 'cost', label: 'Cost' }, { id: 'quotas', label: 'Quotas' }, ...(platformAdmin ? [{ id: 'limits', label: 'Provider limits' }] : [])]} />
      {tab === 'cost' && <Cost address={address} />}
      {tab === 'quotas' && <Quotas />}
      {tab === 'limits' && <ProviderLimits />}
    </Page>
  )
}
