/* Conversations with agents: the list, and the one that is open. */
import { MessageSquarePlus, MessagesSquare } from 'lucide-react'
import { useState } from 'react'
import { Link, useParams } from 'wouter'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useMedia } from '@/app/media'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { plural } from '@/format/number'
import { shortId, visible } from '@/format/text'
import { ButtonLink } from '@/parts/Button'
import { cx } from '@/parts/classes'
import { Empty } from '@/parts/Empty'
import { TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { PagesFooter, usePages } from '@/parts/pages'
import { StatusIcon } from '@/parts/Status'
import { Time } from '@/parts/Time'
import { Conversation } from './Conversation'
import { NewConversation } from './NewConversation'

function Sessions({ selected }: { selected: string | undefined }) {
  const tenant = useTenantParam()
  const [text, setText] = useState('')
  const { may } = useSession()
  const { query, pages } = usePages('/api/v2/chat', { query: tenant }, { topics: ['chat', 'runs'], limit: 50 })
  const sessions = pages.flatMap((page) => page.sessions)
  const shown = sessions.filter((session) => `${session.agent_id} ${session.session_id}`.toLowerCase().includes(text.trim().toLowerCase()))
  return (
    <div className="flex h-full min-h-0 flex-col">
      <div className="flex items-center gap-2 border-b border-line p-2">
        <TextInput type="search" aria-label="Search conversations" placeholder="Agent or session" value={text} onChange={(event) => setText(event.target.value)} />
        {may('runs:write') && (
          <ButtonLink to="/chat?new=1" icon={MessageSquarePlus}>
            New
          </ButtonLink>
        )}
      </div>
      <nav aria-label="Conversations" className="min-h-0 flex-1 overflow-y-auto">
        <Loaded query={query}>
          {() => (
            <>
              {shown.map((session) => (
                <Link
                  key={session.session_id}
                  href={`/chat/${session.session_id}`}
                  aria-current={session.session_id === selected ? 'page' : undefined}
                  className={cx('flex items-center gap-2 border-b border-line px-3 py-2', session.session_id === selected ? 'bg-selected' : 'hover:bg-hover')}
                >
                  <StatusIcon value={session.status} />
                  <span className="min-w-0 flex-1">
                    <span className="block truncate font-medium">{visible(session.agent_id)}</span>
                    <span className="block truncate text-xs text-faint">
                      {plural(session.turns, 'turn')} · <code className="font-mono">{shortId(session.session_id)}</code>
                    </span>
                  </span>
                  <span className="text-xs text-soft"><Time at={session.last_message_at} style="relative" /></span>
                </Link>
              ))}
              <p className="flex flex-wrap items-center gap-2 px-3 py-2 text-xs text-soft">
                {shown.length === 0 && sessions.length > 0 ? 'No loaded conversation matches.' : <PagesFooter query={query} count={sessions.length} noun="conversation" />}
              </p>
            </>
          )}
        </Loaded>
      </nav>
    </div>
  )
}

export default function ChatPage() {
  useTitle('Chat')
  const { sessionId } = useParams<{ sessionId?: string }>()
  const address = useAddress()
  const narrow = useMedia('(max-width: 819px)')
  const creating = sessionId === undefined && address.get('new') !== null
  const open = sessionId !== undefined || creating
  return (
    <div className="grid h-full min-h-0 md:grid-cols-[minmax(220px,300px)_1fr]">
      {(!narrow || !open) && (
        <aside aria-label="List of conversations" className="min-h-0 border-r border-line bg-surface">
          <Sessions selected={sessionId} />
        </aside>
      )}
      {(!narrow || open) && (
        <section aria-label="Conversation" className="flex min-h-0 min-w-0 flex-col">
          {sessionId !== undefined ? (
            <Conversation key={sessionId} sessionId={sessionId} />
          ) : creating ? (
            <NewConversation agent={address.get('agent')} />
          ) : (
            <Empty icon={MessagesSquare} title="Choose a conversation" command="runlane chat AGENT" actions={<ButtonLink to="/chat?new=1">New conversation</ButtonLink>}>
              A conversation is a session with one agent. Each message is a durable run: it survives a restart, and tool calls that need an approval are asked in place.
            </Empty>
          )}
        </section>
      )}
    </div>
  )
}
