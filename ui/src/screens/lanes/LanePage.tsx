/* One lane: slots, holds, settings, kinds, and links to its runs. */
import { CircleX, OctagonPause, Settings2, Split, X } from 'lucide-react'
import { useState } from 'react'
import { Link, useLocation, useParams } from 'wouter'
import { useApi } from '@/api/query'
import type { Lane } from '@/api/types'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { formatCount } from '@/format/number'
import { visible } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { ActionButton } from '@/parts/action/ActionButtons'
import { field, FormAction } from '@/parts/action/FormAction'
import { Button, ButtonLink } from '@/parts/Button'
import { TONE_TEXT } from '@/parts/classes'
import { CopyRead } from '@/parts/CopyRead'
import { Loaded } from '@/parts/Loading'
import { Meter } from '@/parts/Meter'
import { Facts, Page, PageHeader, Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import { Throughput } from '@/screens/overview/Throughput'
import { BulkDialog } from '@/screens/runs/BulkDialog'
import { deleteLaneAction, enableAction, holdAction, releaseHoldAction, SETTINGS, settingsAction, settingsOf } from './laneActions'
import { LaneState } from './LanesPage'
import { verdictOf } from './verdict'

const HOLD = [
  field('reason', 'Reason', { required: true, hint: 'Shown to everyone who checks why runs wait.' }),
  field('minutes', 'Minutes', { control: 'integer', minimum: 1, hint: 'Empty: until it is released.' }),
]

function unassignAction(lane: Lane, kind: string): Action {
  return {
    id: 'unassign',
    label: 'Unassign',
    icon: X,
    title: `Unassign ${kind}`,
    consequence: `Runs of ${kind} use the lane of their code again. Waiting runs stay in ${lane.name}.`,
    verb: 'Unassign',
    request: request('delete', '/api/v2/lanes/{name}/kinds/{kind}', { path: { name: lane.name, kind }, cli: asCli('lanes', 'unassign', lane.name, kind) }),
    done: `${kind} is unassigned.`,
  }
}

function Kinds({ lane, manage }: { lane: Lane; manage: boolean }) {
  return (
    <Panel
      title="Assigned kinds"
      actions={
        manage && (
          <FormAction
            label="Assign"
            icon={Split}
            small
            fields={[field('kinds', 'Kinds', { required: true, hint: 'Task names, separated by commas.' })]}
            build={(values) => {
              const kinds = String(values.kinds ?? '').split(/[\s,]+/).filter((kind) => kind !== '')
              return {
                id: 'assign', label: 'Assign', icon: Split, title: `Assign kinds to ${lane.name}`,
                consequence: `Runs of these kinds use ${lane.name} from now on, including waiting ones. Running ones finish where they are.`,
                verb: 'Assign', done: 'The kinds are assigned.',
                request: request('put', '/api/v2/lanes/{name}/kinds', { path: { name: lane.name }, body: { kinds }, cli: asCli('lanes', 'set', lane.name, '--kinds', kinds.join(',')) }),
              }
            }}
          />
        )
      }
    >
      {lane.kinds.length === 0 ? (
        <p className="text-soft">No kind is assigned. Runs use this lane when their code names it.</p>
      ) : (
        <ul className="flex flex-col gap-1">
          {lane.kinds.map((kind) => (
            <li key={kind} className="flex items-center justify-between gap-2"><span className="truncate">{kind}</span>{manage && <ActionButton small action={unassignAction(lane, kind)} />}</li>
          ))}
        </ul>
      )}
    </Panel>
  )
}

function Holds({ lane, manage }: { lane: Lane; manage: boolean }) {
  if (lane.holds.length === 0) return null
  return (
    <Panel title="Holds" flush>
      <ul className="divide-y divide-line">
        {lane.holds.map((hold) => (
          <li key={hold.hold_id} className="flex flex-wrap items-center gap-x-4 gap-y-1 px-3 py-2">
            <span className="font-medium break-words">{visible(hold.reason)}</span>
            <span className="text-soft">by {visible(hold.owner)}, <Time at={hold.created_at} style="relative" /></span>
            <span className="text-soft">{hold.expires_at === null ? 'without an end' : <>ends <Time at={hold.expires_at} style="relative" /></>}</span>
            {manage && <span className="ml-auto"><ActionButton small action={releaseHoldAction(hold)} /></span>}
          </li>
        ))}
      </ul>
    </Panel>
  )
}

/** Cancel the queued runs that the reader may see; the server counts them before anything happens. */
function CancelQueued({ lane }: { lane: Lane }) {
  const [open, setOpen] = useState(false)
  const { tenant } = useTenantParam()
  return (
    <>
      <Button small look="danger" icon={CircleX} refused={lane.queued === 0 ? 'No run is queued in this lane.' : null} onClick={() => setOpen(true)}>Cancel queued runs</Button>
      {open && <BulkDialog action="cancel" subject={`the queued runs of the lane ${lane.name}`} selected={{ filter: { lane: lane.name, status: ['queued'], tenant } }} onClose={() => setOpen(false)} />}
    </>
  )
}

function LaneView({ lane }: { lane: Lane }) {
  const { may, platform } = useSession()
  const [, navigate] = useLocation()
  const manage = platform && may('workers:manage')
  const workers = useApi('/api/v2/workers', {}, { topics: ['workers'] })
  const { text, tone } = verdictOf(lane, workers.data?.workers)
  const runs = (status: string) => `/runs?lane=${encodeURIComponent(lane.name)}&status=${status}&window=all&children=yes`
  return (
    <>
      <PageHeader title={<span className="flex items-center gap-2">Lane {lane.name} <LaneState lane={lane} /></span>} note={<span className={TONE_TEXT[tone]}>{text}</span>}>
        {manage && <ActionButton action={enableAction(lane)} />}
        {manage && <FormAction label="Hold" icon={OctagonPause} fields={HOLD} build={(values) => holdAction(lane, values)} />}
        {manage && <FormAction label="Settings" icon={Settings2} fields={SETTINGS} initial={settingsOf(lane)} build={(values) => settingsAction(lane, values)} />}
        {manage && <ActionButton action={{ ...deleteLaneAction(lane), after: () => navigate('/lanes') }} />}
        <CopyRead path={`/api/v2/lanes/${encodeURIComponent(lane.name)}`} cli={asCli('lanes', 'list')} />
      </PageHeader>
      <Holds lane={lane} manage={manage} />
      <Panel>
        <Facts
          items={[
            ['Slots in use', <Meter key="slots" label="Slots in use" value={lane.running} max={lane.max_slots} text={lane.max_slots === null ? `${formatCount(lane.running)}, no cap` : undefined} />],
            ['Queued', <Link key="queued" href={runs('queued')} className="text-accent underline">{formatCount(lane.queued)}</Link>],
            ['Oldest queued', <Time key="oldest" at={lane.oldest_queued_at} style="relative" />],
            ['Order', lane.fair ? 'fair between tenants' : 'first come, first served'],
            ['Priority', `a point is worth ${lane.priority_seconds} s`],
            ['Poll interval', `${lane.poll_interval_ms} ms`],
            ['Stale after', lane.stale_timeout_minutes === null ? 'never' : `${lane.stale_timeout_minutes} min`],
          ]}
        />
        <div className="mt-3 flex flex-wrap gap-2">
          <ButtonLink small to={runs('running')}>Running runs</ButtonLink>
          <ButtonLink small to={runs('queued')}>Queued runs</ButtonLink>
          <ButtonLink small to={runs('failed')}>Failed runs</ButtonLink>
          {may('runs:write') && <CancelQueued lane={lane} />}
          {may('audit:read') && <ButtonLink small to={`/access?tab=audit&subject=${encodeURIComponent(lane.name)}`}>Who changed it</ButtonLink>}
        </div>
      </Panel>
      <Throughput lane={lane.name} />
      <Kinds lane={lane} manage={manage} />
    </>
  )
}

export default function LanePage() {
  const { name = '' } = useParams<{ name: string }>()
  useTitle(`Lane ${name}`)
  const query = useApi('/api/v2/lanes/{name}', { path: { name: decodeURIComponent(name) } }, { topics: ['lanes', 'runs'], pollMs: 10_000 })
  return <Page><Loaded query={query}>{(lane) => <LaneView lane={lane} />}</Loaded></Page>
}
