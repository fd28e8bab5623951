/* Schedules: what they start, when next, and whether they fire. */
import { CalendarClock } from 'lucide-react'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { formatCount } from '@/format/number'
import { oneLine, visible } from '@/format/text'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { PagesFooter, usePages } from '@/parts/pages'
import { Page, PageHeader } from '@/parts/Panel'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Time } from '@/parts/Time'
import { Target } from '@/screens/runs/runColumns'
import type { Tone } from '@/text/status'
import { FiringDots } from './FiringDots'
import { NewSchedule } from './NewSchedule'
import { type Schedule, targetOf } from './scheduleForm'

const SHOWN_FIRINGS = 10
const TONES: Record<string, Tone> = { active: 'ok', paused: 'person', ended: 'idle' }

export function ScheduleState({ schedule }: { schedule: Schedule }) {
  return <Chip tone={TONES[schedule.status] ?? 'idle'} title={schedule.paused_reason ?? undefined}>{schedule.status}</Chip>
}

const COLUMNS: Column<Schedule>[] = [
  { id: 'id', title: 'Schedule', width: 120, grow: true, fixed: true, render: (schedule) => <span className="font-medium">{visible(schedule.name || schedule.id)}</span> },
  { id: 'status', title: 'Status', width: 84, render: (schedule) => <ScheduleState schedule={schedule} /> },
  { id: 'target', title: 'Starts', width: 120, render: (schedule) => <Target target={targetOf(schedule)} /> },
  { id: 'times', title: 'Times', width: 180, grow: true, render: (schedule) => <span className="text-soft">{oneLine(schedule.description, 120)}</span> },
  { id: 'next', title: 'Next', width: 80, render: (schedule) => <Time at={schedule.next_due_at} style="relative" /> },
  { id: 'latest', title: 'Latest', width: 116, render: (schedule) => <FiringDots firings={schedule.latest_firings} /> },
  { id: 'fired', title: 'Fired', width: 56, align: 'right', render: (schedule) => <span className="tabular text-soft">{formatCount(schedule.fired)}</span> },
  { id: 'overlap', title: 'Overlap', width: 84, wideOnly: true, render: (schedule) => <span className="text-soft">{schedule.overlap.replaceAll('_', ' ')}</span> },
  { id: 'source', title: 'Source', width: 76, wideOnly: true, render: (schedule) => <span className="text-soft">{schedule.source}</span> },
  { id: 'warnings', title: 'Warnings', width: 150, wideOnly: true, render: (schedule) => <span className="text-wait" title={schedule.warnings.join('\n')}>{oneLine(schedule.warnings.join(' '), 80)}</span> },
]

export default function SchedulesPage() {
  useTitle('Schedules')
  const { may } = useSession()
  const { query, pages } = usePages('/api/v2/schedules', { query: { ...useTenantParam(), firings: SHOWN_FIRINGS } }, { topics: ['schedules', 'runs'], pollMs: 30_000 })
  const schedules = pages.flatMap((page) => page.schedules)
  return (
    <Page fill>
      <PageHeader title="Schedules" note="A schedule starts a run at each of its slots, once, whichever server is up.">
        {may('schedules:write') && <NewSchedule />}
        <CopyRead path="/api/v2/schedules" cli={asCli('schedules', 'list')} />
      </PageHeader>
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">
        <Loaded query={query}>
          {() =>
            schedules.length === 0 ? (
              <Empty icon={CalendarClock} title="No schedule exists yet" command={'runlane schedules create nightly --task report --cron "0 7 * * *"'}>
                A schedule starts a task, an orchestration or an agent by a cron expression, at an interval or once, in a time zone of your choice.
              </Empty>
            ) : (
              <Table<Schedule> name="schedules" label="Schedules" columns={COLUMNS} rows={schedules} id={(schedule) => `${schedule.tenant}/${schedule.id}`} link={(schedule) => `/schedules/${encodeURIComponent(schedule.id)}`} footer={<PagesFooter query={query} count={schedules.length} noun="schedule" />} />
            )
          }
        </Loaded>
      </section>
    </Page>
  )
}
