/* Browsers that are signed in. */
import { MonitorSmartphone } from 'lucide-react'
import { useApi } from '@/api/query'
import { oneLine, visible } from '@/format/text'
import { ActionButton } from '@/parts/action/ActionButtons'
import { Empty } from '@/parts/Empty'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import { endSessionAction } from './accessActions'

export function Sessions() {
  const query = useApi('/api/v2/ui/sessions', {}, { topics: ['access'], pollMs: 30_000 })
  return (
    <Panel title="Sessions of browsers" flush>
      <Loaded query={query}>
        {({ sessions }) => sessions.length === 0 ? (
          <Empty icon={MonitorSmartphone} title="No browser is signed in">A browser that signs in with a key gets a session. It ends after 12 idle hours, after 7 days, or when its key is revoked.</Empty>
        ) : (
          <ul className="divide-y divide-line">
            {sessions.map((session) => (
              <li key={session.id} className="flex flex-wrap items-center gap-x-4 gap-y-1 px-3 py-2">
                <span className="font-medium">{visible(session.key_name ?? session.key_id)}</span>
                {session.current === true && <Chip tone="ok">this browser</Chip>}
                <span className="text-soft">{session.tenant}</span><code className="font-mono text-xs text-soft">{session.address}</code>
                <span className="text-soft">since <Time at={session.created_at} style="relative" />, seen <Time at={session.last_seen_at} style="relative" /></span>
                <span className="min-w-40 flex-1 truncate text-xs text-faint">{oneLine(session.agent, 120)}</span>
                <ActionButton small action={endSessionAction(session)} />
              </li>
            ))}
          </ul>
        )}
      </Loaded>
    </Panel>
  )
}
