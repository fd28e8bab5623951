/* Lanes with their live slots, and why runs wait. */
import { OctagonPause, Plus, Rows3, Settings2 } from 'lucide-react'
import { useApi } from '@/api/query'
import type { Lane } from '@/api/types'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { formatCount, formatShort, plural } from '@/format/number'
import { oneLine } from '@/format/text'
import { request } from '@/parts/action/action'
import { field, FormAction } from '@/parts/action/FormAction'
import { cx, TONE_TEXT } from '@/parts/classes'
import { CopyRead } from '@/parts/CopyRead'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Chip, Meter } from '@/parts/Meter'
import { Page, PageHeader } from '@/parts/Panel'
import { Sparkline } from '@/parts/Sparkline'
import type { Column } from '@/parts/table/columns'
import { Table } from '@/parts/table/Table'
import { Duration, Time } from '@/parts/Time'
import { type LaneFigures, type Rate, useLaneFigures } from './laneFigures'
import { LaneMenu } from './LaneMenu'
import { type ServingWorker, verdictOf, workersOf } from './verdict'

export function LaneState({ lane }: { lane: Lane }) {
  if (!lane.enabled) return <Chip tone="bad">paused</Chip>
  if (lane.held) return <Chip tone="person"><OctagonPause size={12} aria-hidden /> held</Chip>
  return lane.max_slots === 0 ? <Chip tone="person">no slots</Chip> : <Chip tone="ok">starts runs</Chip>
}

/** A rate per minute, with the last hour beside it. */
function RateView({ rate, label }: { rate: Rate | undefined; label: string }) {
  if (rate === undefined) return <span className="text-faint">–</span>
  const { counts, perMinute } = rate
  return <span className="flex items-center gap-2"><Sparkline tone="busy" width={60} height={16} values={counts} label={label} /><span className="tabular text-soft" title="Per minute, in the last five to ten minutes">{perMinute < 10 ? Math.round(perMinute * 10) / 10 : formatShort(Math.round(perMinute))}</span></span>
}

/** Runs per minute that were accepted, started or ended. */
function rateColumn(id: 'accepted' | 'started' | 'ended', title: string, what: string, figures: ReadonlyMap<string, LaneFigures> | null): Column<Lane> {
  return { id, title, width: 112, render: (lane) => <RateView rate={figures?.get(lane.name)?.[id]} label={`Runs of ${lane.name} that ${what} in each five minutes`} /> }
}

function columns(workers: ServingWorker[] | undefined, figures: ReadonlyMap<string, LaneFigures> | null): Column<Lane>[] {
  return [
    { id: 'name', title: 'Lane', width: 120, grow: true, fixed: true, render: (lane) => <span className="font-medium">{lane.name}</span> },
    { id: 'state', title: 'State', width: 104, render: (lane) => <LaneState lane={lane} /> },
    { id: 'slots', title: 'Slots', width: 128, render: (lane) => <Meter label={`Slots of ${lane.name}`} value={lane.running} max={lane.max_slots} tone={lane.max_slots !== null && lane.running >= lane.max_slots ? 'wait' : 'busy'} text={lane.max_slots === null ? `${formatCount(lane.running)}, no cap` : undefined} /> },
    { id: 'queued', title: 'Queued', width: 68, align: 'right', render: (lane) => <span className={cx('tabular', lane.queued > 0 && 'text-wait')}>{formatCount(lane.queued)}</span> },
    { id: 'oldest', title: 'Oldest', width: 80, render: (lane) => <Time at={lane.oldest_queued_at} style="relative" /> },
    { id: 'verdict', title: 'Verdict', width: 190, grow: true, render: (lane) => {
      const { text, tone } = verdictOf(lane, workers)
      return <span className={TONE_TEXT[tone]}>{text}</span>
    } },
    { ...rateColumn('started', 'Started / min', 'started', figures), wideOnly: true },
    { ...rateColumn('ended', 'Ended / min', 'ended', figures), wideOnly: true },
    { id: 'wait', title: 'p95 wait', width: 76, align: 'right', wideOnly: true, render: (lane) => <Duration seconds={figures?.get(lane.name)?.wait} /> },
    { id: 'workers', title: 'Workers', width: 70, align: 'right', wideOnly: true, render: (lane) => <span className="tabular text-soft">{workers === undefined ? '–' : workersOf(lane.name, workers).length}</span> },
    { ...rateColumn('accepted', 'Accepted / min', 'were accepted', figures), optional: true },
    { id: 'kinds', title: 'Assigned kinds', width: 160, optional: true, render: (lane) => <span className="text-soft" title={lane.kinds.join(', ')}>{oneLine(lane.kinds.join(', '), 60)}</span> },
    { id: 'poll', title: 'Poll', width: 76, align: 'right', optional: true, render: (lane) => <span className="tabular text-soft">{lane.poll_interval_ms} ms</span> },
    { id: 'fair', title: 'Order', width: 100, optional: true, render: (lane) => <span className="text-soft">{lane.fair ? 'fair' : 'first come'}</span> },
  ]
}

const NEW_LANE = [
  field('name', 'Name', { required: true }),
  field('max_slots', 'Slots', { control: 'integer', minimum: 0, maximum: 10_000, hint: 'Maximum number of concurrent runs in the cluster. Empty: no cap.' }),
  field('kinds', 'Kinds', { hint: 'Task names, separated by commas. Their waiting and future runs use this lane.' }),
]

function NewLane() {
  return (
    <FormAction
      label="New lane"
      icon={Plus}
      fields={NEW_LANE}
      build={(values) => {
        const kinds = String(values.kinds ?? '').split(/[\s,]+/).filter((kind) => kind !== '')
        const name = String(values.name ?? '')
        const slots = values.max_slots as number | undefined
        return {
          id: 'new-lane',
          label: 'New lane',
          icon: Settings2,
          title: 'New lane',
          consequence: kinds.length === 0 ? 'The lane is created. Runs use it when their task names it, or when a kind is assigned to it.' : `The lane is created, and runs of ${kinds.join(', ')} use it from now on, including waiting ones.`,
          verb: 'Create the lane',
          request: request('post', '/api/v2/lanes', {
            body: { name, kinds, ...(slots === undefined ? {} : { max_slots: slots }) },
            cli: asCli('lanes', 'set', name, '--create', ...(slots === undefined ? [] : ['--max-slots', String(slots)]), ...(kinds.length === 0 ? [] : ['--kinds', kinds.join(',')])),
          }),
          done: `The lane ${name} is created.`,
        }
      }}
    />
  )
}

export default function LanesPage() {
  useTitle('Lanes')
  const { may, platform } = useSession()
  const lanes = useApi('/api/v2/lanes', {}, { topics: ['lanes', 'runs'], pollMs: 10_000 })
  const workers = useApi('/api/v2/workers', {}, { topics: ['workers'], pollMs: 10_000 })
  const figures = useLaneFigures()
  return (
    <Page fill>
      <PageHeader title="Lanes" note="A lane is a queue with its own slots. Caps hold in the whole cluster and change at run time.">
        {platform && may('workers:manage') && <NewLane />}
        <CopyRead path="/api/v2/lanes" cli={asCli('lanes', 'list')} />
      </PageHeader>
      <section className="flex min-h-0 flex-1 flex-col overflow-hidden rounded-lg border border-line bg-surface">
        <Loaded query={lanes}>
          {(list) =>
            list.lanes.length === 0 ? (
              <Empty icon={Rows3} title="No lane exists yet" command="runlane lanes set media --create --max-slots 4">
                A lane appears with the first run of a task that names it, or when you create it.
              </Empty>
            ) : (
              <Table<Lane> name="lanes" label="Lanes" columns={columns(workers.data?.workers, figures)} rows={list.lanes} id={(lane) => lane.name} link={(lane) => `/lanes/${encodeURIComponent(lane.name)}`} actions={platform && may('workers:manage') ? (lane) => <LaneMenu lane={lane} /> : undefined} footer={<span>{plural(list.lanes.length, 'lane')}</span>} />
            )
          }
        </Loaded>
      </section>
    </Page>
  )
}
