/* The newest runs. */
import { useApi } from '@/api/query'
import type { RunSummary } from '@/api/types'
import { useTenantParam } from '@/app/tenant'
import { ButtonLink } from '@/parts/Button'
import { Loaded } from '@/parts/Loading'
import { Panel } from '@/parts/Panel'
import { Table } from '@/parts/table/Table'
import { RUN_COLUMNS } from '../runs/runColumns'

const SHOWN = new Set(['target', 'status', 'id', 'accepted', 'duration', 'lane', 'progress'])
const COLUMNS = RUN_COLUMNS.filter((column) => SHOWN.has(column.id))

export function RecentRuns() {
  const tenant = useTenantParam()
  const query = useApi('/api/v2/runs', { query: { ...tenant, limit: 10 } }, { topics: ['runs'], keep: true })
  return (
    <Panel title="Newest runs" actions={<ButtonLink small to="/runs">All runs</ButtonLink>} flush>
      <Loaded query={query} rows={10}>
        {({ runs }) => <Table<RunSummary> inline name="overview.runs" label="Newest runs" columns={COLUMNS} rows={runs} id={(run) => run.run_id} link={(run) => `/runs/${run.run_id}`} />}
      </Loaded>
    </Panel>
  )
}
