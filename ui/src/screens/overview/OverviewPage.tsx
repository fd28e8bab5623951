/* The overview: what runs, what waits and for how long, what failed, what it cost. Each figure links to its list. */
import { useApi } from '@/api/query'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { Loaded } from '@/parts/Loading'
import { Page, PageHeader } from '@/parts/Panel'
import { BackingOff } from './BackingOff'
import { Errors } from './Errors'
import { FirstSteps } from './FirstSteps'
import { Figures } from './Figures'
import { LanesNow } from './LanesNow'
import { RecentRuns } from './RecentRuns'
import { ScheduleWarnings } from './ScheduleWarnings'
import { Throughput } from './Throughput'

export function OverviewPage() {
  useTitle('Overview')
  const { may } = useSession()
  const tenant = useTenantParam()
  const counts = useApi('/api/v2/runs/counts', { query: tenant }, { topics: ['runs'], staleMs: 1_000 })
  return (
    <Page>
      <PageHeader title="Overview" />
      <Loaded query={counts}>
        {({ counts: found }) =>
          found.every((entry) => entry.count === 0) ? (
            <FirstSteps />
          ) : (
            <>
              <Figures counts={found} />
              {may('workers:view') && <BackingOff />}
              <ScheduleWarnings />
              <Throughput />
              <div className="grid gap-3 lg:grid-cols-2">
                {may('workers:view') && <LanesNow />}
                <Errors />
              </div>
              <RecentRuns />
            </>
          )
        }
      </Loaded>
    </Page>
  )
}
