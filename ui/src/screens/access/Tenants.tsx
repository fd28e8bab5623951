/* Tenants with their limits. */
import { Pencil, Plus } from 'lucide-react'
import { useState } from 'react'
import { useApi } from '@/api/query'
import { useTitle } from '@/app/inboxCount'
import { formatCost, formatCount, plural } from '@/format/number'
import { visible } from '@/format/text'
import { field, FormAction, FormActionDialog, type FormValues } from '@/parts/action/FormAction'
import { IconButton } from '@/parts/Button'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { Panel } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { changeTenantAction, newTenantAction, type Tenant, TENANT_FIELDS } from './accessActions'

const limit = (value: number | null) => <span className="tabular text-soft">{value === null ? 'no limit' : formatCount(value)}</span>

const COLUMNS: Column<Tenant>[] = [
  { id: 'id', title: 'Tenant', width: 150, grow: true, fixed: true, render: (tenant) => <span className="font-medium">{visible(tenant.id)}</span> },
  { id: 'name', title: 'Name', width: 150, grow: true, render: (tenant) => visible(tenant.name) },
  { id: 'state', title: 'State', width: 90, render: (tenant) => <Chip tone={tenant.enabled ? 'ok' : 'bad'}>{tenant.enabled ? 'enabled' : 'disabled'}</Chip> },
  { id: 'queued', title: 'Queued', width: 90, align: 'right', render: (tenant) => limit(tenant.max_queued) },
  { id: 'running', title: 'Running', width: 90, align: 'right', render: (tenant) => limit(tenant.max_running) },
  { id: 'cost', title: 'Cost per day', width: 110, align: 'right', render: (tenant) => <span className="tabular text-soft">{tenant.max_cost_usd_per_day === null ? 'no limit' : formatCost(tenant.max_cost_usd_per_day)}</span> },
  { id: 'rate', title: 'Requests/s', width: 90, align: 'right', wideOnly: true, render: (tenant) => limit(tenant.rate_per_second) },
  { id: 'weight', title: 'Weight', width: 70, align: 'right', wideOnly: true, render: (tenant) => <span className="tabular text-soft">{tenant.weight}</span> },
]

export function Tenants() {
  useTitle('Access')
  const query = useApi('/api/v2/tenants', {}, { topics: ['access'] })
  const [changing, setChanging] = useState<Tenant | null>(null)
  return (
    <Panel title="Tenants" flush actions={<FormAction small label="New tenant" icon={Plus} fields={[field('id', 'Id', { required: true }), field('name', 'Name')]} build={newTenantAction} />}>
      <Loaded query={query}>
        {({ tenants }) => <Table<Tenant> inline name="tenants" label="Tenants" columns={COLUMNS} rows={tenants} id={(tenant) => tenant.id} dimmed={(tenant) => !tenant.enabled} actions={(tenant) => <IconButton label={`Change ${tenant.id}`} icon={Pencil} onClick={() => setChanging(tenant)} />} footer={<span>{plural(tenants.length, 'tenant')}</span>} />}
      </Loaded>
      {changing !== null && <FormActionDialog fields={TENANT_FIELDS} initial={changing as unknown as FormValues} build={(values) => changeTenantAction(changing, values)} onClose={() => setChanging(null)} />}
    </Panel>
  )
}
