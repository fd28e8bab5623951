/* One schedule: its next slots, its firings, its settings, and what can be done. */
import { CirclePause, CirclePlay, Zap } from 'lucide-react'
import { Link, useLocation, useParams } from 'wouter'
import { useApi } from '@/api/query'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { formatCount } from '@/format/number'
import { shortId, visible } from '@/format/text'
import { ActionButton } from '@/parts/action/ActionButtons'
import { field, FormAction } from '@/parts/action/FormAction'
import { ButtonLink } from '@/parts/Button'
import { cx, TONE_TEXT } from '@/parts/classes'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { JsonView } from '@/parts/json/JsonView'
import { Loaded } from '@/parts/Loading'
import { PagesFooter, usePages } from '@/parts/pages'
import { Facts, Page, PageHeader, Panel } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import { Time } from '@/parts/Time'
import { Target } from '@/screens/runs/runColumns'
import { Backfill } from './Backfill'
import { FiringDots } from './FiringDots'
import { firingText } from './firingText'
import { SlotList } from './Preview'
import { deleteScheduleAction, pauseAction, resumeAction, triggerAction } from './scheduleActions'
import { type Schedule, targetOf } from './scheduleForm'
import { ScheduleState } from './SchedulesPage'

function Firings({ id }: { id: string }) {
  const { query, pages } = usePages('/api/v2/schedules/{schedule_id}/firings', { path: { schedule_id: id } }, { topics: ['schedules', 'runs'], limit: 50 })
  const firings = pages.flatMap((page) => page.firings)
  return (
    <Panel title="Firings" flush>
      <Loaded query={query}>
        {() =>
          firings.length === 0 ? (
            <Empty title="It has not fired yet">Each slot gets one entry: started, skipped, missed or refused, with the reason.</Empty>
          ) : (
            <>
              <p className="px-3 pt-2 pb-1"><FiringDots firings={firings.slice(0, 40)} /></p>
              <ul className="divide-y divide-line">
                {firings.map((firing) => (
                  <li key={`${firing.slot} ${firing.kind} ${firing.decided_at}`} className="flex flex-wrap gap-x-4 gap-y-1 px-3 py-1.5">
                    <Time at={firing.slot} style="exact" />
                    <span className={cx('min-w-28', firing.run_status === null ? TONE_TEXT[firingText(firing.outcome).tone] : 'text-soft')}>{firingText(firing.outcome).word}{firing.count > 1 ? ` (${firing.count} slots)` : ''}</span>
                    <span className="min-w-14 text-soft">{firing.kind}</span>
                    {firing.run_id !== null && <Link href={`/runs/${firing.run_id}`} className="font-mono text-xs text-accent underline">{shortId(firing.run_id)}</Link>}
                    {firing.run_status !== null && <Status value={firing.run_status} plain />}
                    {(firing.reason ?? firing.detail) !== null && <span className="break-words text-soft">{visible([firing.reason, firing.detail].filter(Boolean).join(': '))}</span>}
                  </li>
                ))}
              </ul>
              <p className="flex items-center gap-2 px-3 py-2 text-soft"><PagesFooter query={query} count={firings.length} noun="firing" /></p>
            </>
          )
        }
      </Loaded>
    </Panel>
  )
}

function Buttons({ schedule }: { schedule: Schedule }) {
  const [, navigate] = useLocation()
  const paused = schedule.status === 'paused'
  return (
    <>
      <FormAction label="Run now" icon={Zap} fields={[field('input', 'Input instead of the stored one', { control: 'json', hint: 'Optional JSON object.' })]} build={(values) => triggerAction(schedule, values)} />
      {paused ? (
        <FormAction label="Resume" icon={CirclePlay} look="main" fields={[field('catch_up', 'Slots of the pause', { control: 'choice', options: ['none', 'latest', 'all'], initial: 'none', required: true })]} build={(values) => resumeAction(schedule, values)} />
      ) : (
        <FormAction label="Pause" icon={CirclePause} fields={[field('reason', 'Reason', { required: true, hint: 'Shown to everyone who checks why nothing starts.' })]} build={(values) => pauseAction(schedule, values)} />
      )}
      <Backfill schedule={schedule} />
      <ActionButton action={{ ...deleteScheduleAction(schedule), after: () => navigate('/schedules') }} />
    </>
  )
}

function ScheduleView({ schedule }: { schedule: Schedule }) {
  const { may } = useSession()
  const next = useApi('/api/v2/schedules/{schedule_id}/next', { path: { schedule_id: schedule.id }, query: { count: 5 } }, { topics: ['schedules'] })
  return (
    <>
      <PageHeader title={<span className="flex items-center gap-2">{visible(schedule.name || schedule.id)} <ScheduleState schedule={schedule} /></span>} note={visible(schedule.description)}>
        {may('schedules:write') && <Buttons schedule={schedule} />}
        <ButtonLink to={`/runs?schedule=${encodeURIComponent(schedule.id)}&window=all`}>Its runs</ButtonLink>
        <CopyRead path={`/api/v2/schedules/${encodeURIComponent(schedule.id)}`} cli={asCli('schedules', 'show', schedule.id)} />
      </PageHeader>
      {schedule.status === 'paused' && (
        <p role="status" className="rounded-md bg-person-soft px-3 py-1.5 text-person">Paused by {visible(schedule.paused_by ?? 'someone')} <Time at={schedule.paused_at} style="relative" />: {visible(schedule.paused_reason ?? 'no reason was given')}</p>
      )}
      {schedule.warnings.map((warning) => <p key={warning} role="status" className="rounded-md bg-wait-soft px-3 py-1.5 text-wait">{visible(warning)}</p>)}
      <div className="grid gap-3 lg:grid-cols-2">
        <Panel title="Next slots">{schedule.status === 'active' ? <Loaded query={next} rows={5}>{(slots) => <SlotList slots={slots.next} />}</Loaded> : <p className="text-soft">Nothing is started while the schedule is {schedule.status}.</p>}</Panel>
        <Panel>
          <Facts items={[
            ['Starts', <Target key="target" target={targetOf(schedule)} />],
            ['Overlap', schedule.overlap.replaceAll('_', ' ')],
            ['After an outage', schedule.catch_up],
            ['Fired', formatCount(schedule.fired)],
            ['Source', schedule.source],
            ['Changed', <span key="by">{visible(schedule.updated_by)} <Time at={schedule.updated_at} style="relative" /></span>],
            ['Version', schedule.version],
          ]} />
          <details className="mt-3"><summary className="w-fit text-soft">All settings</summary><div className="mt-1"><JsonView value={schedule.settings} label="the settings" /></div></details>
        </Panel>
      </div>
      <Firings id={schedule.id} />
    </>
  )
}

export default function SchedulePage() {
  const { scheduleId = '' } = useParams<{ scheduleId: string }>()
  const id = decodeURIComponent(scheduleId)
  useTitle(`Schedule ${id}`)
  const query = useApi('/api/v2/schedules/{schedule_id}', { path: { schedule_id: id } }, { topics: ['schedules'] })
  return <Page><Loaded query={query}>{(schedule) => <ScheduleView schedule={schedule} />}</Loaded></Page>
}
