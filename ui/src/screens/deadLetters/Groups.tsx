/* Failures with the same cause as one entry: how many, since when, which versions, and what can be done. */
import { Skull } from 'lucide-react'
import { useState } from 'react'
import { Link } from 'wouter'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import type { Address } from '@/app/address'
import { useSession } from '@/app/session'
import { formatCount, plural } from '@/format/number'
import { oneLine, shortId } from '@/format/text'
import { Button, ButtonLink } from '@/parts/Button'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Sparkline } from '@/parts/Sparkline'
import { Time } from '@/parts/Time'
import { LETTER_ACTIONS, type LetterAction, type LetterFilter } from './letterBulk'
import { LetterBulkDialog } from './LetterBulkDialog'

type Group = components['schemas']['DeadLetterGroup']

function GroupCard({ group, address, filter, onAct }: { group: Group; address: Address; filter: LetterFilter; onAct: (action: LetterAction, group: Group) => void }) {
  const { may } = useSession()
  return (
    <li className="flex flex-col gap-2 border-b border-line px-3 py-3 last:border-b-0">
      <div className="flex flex-wrap items-start gap-x-4 gap-y-1">
        <span className="tabular min-w-10 text-right text-xl font-semibold text-bad">{formatCount(group.count)}</span>
        <div className="min-w-0 flex-1 basis-60">
          <p className="font-medium break-words">{oneLine(group.sample.message, 300)}</p>
          <p className="flex flex-wrap gap-x-3 text-xs text-soft">
            <code className="font-mono">{group.code}</code>
            <span>{oneLine(group.targets.join(', '), 80)}</span>
            {group.steps.length > 0 && <span>step {oneLine(group.steps.join(', '), 60)}</span>}
            {group.versions.length > 1 && <span className="text-wait">{plural(group.versions.length, 'version')}</span>}
          </p>
        </div>
        <div className="flex flex-col items-end gap-1 text-xs text-soft max-sm:ml-14 max-sm:items-start">
          <Sparkline values={group.daily} label={`Failures of the last ${group.daily.length} days`} />
          <p>last <Time at={group.last_died_at} style="relative" /> · first <Time at={group.first_failed_at} style="relative" /></p>
        </div>
      </div>
      <div className="flex flex-wrap items-center gap-1.5">
        {may('runs:write') &&
          (Object.keys(LETTER_ACTIONS) as LetterAction[]).map((action) => (
            <Button key={action} small icon={LETTER_ACTIONS[action].icon} look={action === 'retry' ? 'normal' : 'quiet'} onClick={() => onAct(action, group)}>
              {action !== 'retry' ? LETTER_ACTIONS[action].label : group.count === 1 ? 'Replay' : `Replay all ${formatCount(group.count)}`}
            </Button>
          ))}
        <ButtonLink small look="quiet" to={address.link({ fingerprint: group.fingerprint, view: 'list' })}>{group.count === 1 ? 'Show it' : 'Show them'}</ButtonLink>
        <Link href={`/dead-letters/${group.sample.run_id}`} className="text-xs text-accent underline">Sample {shortId(group.sample.run_id)} with traceback</Link>
        {filter.tenant === undefined && group.sample.tenant !== 'default' && <span className="text-xs text-faint">tenant {group.sample.tenant}</span>}
      </div>
    </li>
  )
}

export function Groups({ address, filter }: { address: Address; filter: LetterFilter }) {
  const query = useApi('/api/v2/dead-letters/groups', { query: { limit: 100, ...filter } as never }, { topics: ['dead_letters'], keep: true })
  const [act, setAct] = useState<{ action: LetterAction; group: Group } | null>(null)
  return (
    <Loaded query={query}>
      {({ groups, more }) => (
        <>
          {groups.length === 0 ? (
            <Empty icon={Skull} title="No dead letter" command="runlane dead-letters groups">
              A run that fails after its last attempt becomes a dead letter, with its input, attempts and traceback. Failures with the same cause are one group, which can be replayed at once.
            </Empty>
          ) : (
            <ul aria-label="Groups of failures">{groups.map((group) => <GroupCard key={group.fingerprint} group={group} address={address} filter={filter} onAct={(action, chosen) => setAct({ action, group: chosen })} />)}</ul>
          )}
          {more && <p className="px-3 py-2 text-soft">More groups exist; the {groups.length} largest are shown.</p>}
          {act !== null && (
            <LetterBulkDialog
              action={act.action}
              selection={{ filter: { ...filter, fingerprint: act.group.fingerprint } }}
              what={`${plural(act.group.count, 'dead letter')} with ${act.group.code}`}
              onClose={() => setAct(null)}
              onStarted={() => setAct(null)}
            />
          )}
        </>
      )}
    </Loaded>
  )
}
