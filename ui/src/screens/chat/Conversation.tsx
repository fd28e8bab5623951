/* One conversation: its turns in the order of acceptance, the open one live, and the input. */
import { ArrowLeft, CircleStop, Trash2 } from 'lucide-react'
import { useEffect, useMemo, useRef, useState } from 'react'
import { Link, useLocation } from 'wouter'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import type { RunSummary } from '@/api/types'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { formatCost, plural } from '@/format/number'
import { visible } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { ActionButton } from '@/parts/action/ActionButtons'
import { Button } from '@/parts/Button'
import { CopyIconButton } from '@/parts/Copy'
import { Loaded } from '@/parts/Loading'
import { Status } from '@/parts/Status'
import { isEnded } from '@/text/status'
import { Composer } from './Composer'
import { Turn } from './Turn'
import { type TurnMessages, turnsOf } from './turns'

/** Turns that are loaded at first, and with each further click; the server sends at most five times as many. */
const PAGE = 100
const MOST = 500

type State = components['schemas']['ChatState']

function sessionActions(session: State, open: number, onDeleted: () => void): Action[] {
  const path = { session_id: session.session_id }
  return [
    {
      id: 'cancel-turn',
      label: 'Cancel the turn',
      icon: CircleStop,
      danger: true,
      refused: open === 0 ? 'No turn is open.' : null,
      title: 'Cancel the open turns',
      consequence: `${plural(open, 'turn that has not ended is', 'turns that have not ended are')} cancelled. Messages are kept, and the conversation can continue.`,
      verb: 'Cancel the turn',
      request: request('post', '/api/v2/chat/{session_id}/cancel', { path }),
      done: 'The turn is being cancelled.',
    },
    {
      id: 'delete-session',
      label: 'Delete',
      icon: Trash2,
      danger: true,
      refused: open > 0 ? 'A turn is open. Cancel it first.' : null,
      title: 'Delete the conversation',
      consequence: `${plural(session.turns, 'turn')} with all messages and runs are deleted. This cannot be undone.`,
      verb: 'Delete the conversation',
      typed: 'delete',
      request: request('delete', '/api/v2/chat/{session_id}', { path }),
      done: 'The conversation is deleted.',
      after: onDeleted,
    },
  ]
}

function useRuns(turns: TurnMessages[]): Map<string, RunSummary> {
  const ids = turns.slice(-100).map((turn) => turn.runId)
  const runs = useApi('/api/v2/runs', { query: { ids, limit: 100 } }, { topics: ['runs'], enabled: ids.length > 0, keep: true })
  return useMemo(() => new Map((runs.data?.runs ?? []).map((run) => [run.run_id, run as RunSummary])), [runs.data])
}

export function Conversation({ sessionId }: { sessionId: string }) {
  const [, navigate] = useLocation()
  const { may } = useSession()
  const status = useApi('/api/v2/chat/{session_id}/status', { path: { session_id: sessionId } }, { topics: ['chat', 'runs'] })
  const [shown, setShown] = useState(PAGE)
  const messages = useApi('/api/v2/chat/{session_id}/messages', { path: { session_id: sessionId }, query: { after: Math.max(0, (status.data?.turns ?? 0) - shown), limit: shown } }, { topics: ['chat', 'runs'], enabled: status.data !== undefined, keep: true })
  const turns = useMemo(() => turnsOf(messages.data?.messages ?? []), [messages.data])
  const runs = useRuns(turns)
  const isOpen = (turn: TurnMessages) => !isEnded((turn.answer ?? turn.user)?.status ?? 'queued')
  const open = turns.filter(isOpen)
  const end = useRef<HTMLDivElement>(null)
  const count = turns.length
  useEffect(() => end.current?.scrollIntoView({ block: 'end' }), [count])
  const cost = [...runs.values()].reduce((sum, run) => sum + (run.total_cost_usd ?? 0), 0)
  return (
    <Loaded query={status}>
      {(session) => (
        <>
          <header className="flex flex-wrap items-center gap-2 border-b border-line bg-surface px-3 py-2">
            <Link href="/chat" aria-label="All conversations" className="rounded-sm p-1 md:hidden">
              <ArrowLeft size={16} aria-hidden />
            </Link>
            <h1 className="min-w-0 truncate text-base font-semibold">{visible(session.agent_id)}</h1>
            <Status value={session.status} />
            <code className="truncate font-mono text-xs text-faint">{session.session_id}</code>
            <CopyIconButton text={asCli('chat', session.agent_id, '--session', session.session_id)} label="Copy the command that continues it in a terminal" />
            {cost > 0 && <span className="text-xs text-soft" title="Cost of the turns that are shown">{formatCost(cost)}</span>}
            <span className="ml-auto flex gap-1.5">
              {may('runs:write') && sessionActions(session, open.length, () => navigate('/chat')).map((action) => (action.id === 'cancel-turn' && action.refused ? null : <ActionButton key={action.id} action={action} small />))}
            </span>
          </header>
          <div className="min-h-0 flex-1 overflow-y-auto">
            <Loaded query={messages}>
              {() => (
                <ol aria-label="Messages" className="mx-auto flex max-w-[860px] flex-col gap-4 p-4">
                  {session.turns > shown && (
                    <li className="text-center text-xs text-soft">
                      The newest {shown} of {session.turns} turns are shown. {shown < MOST ? <Button small onClick={() => setShown(shown + PAGE)}>Show older turns</Button> : 'The API lists all of them.'}
                    </li>
                  )}
                  {turns.map((turn) => (
                    <Turn key={turn.turn} turn={turn} run={runs.get(turn.runId)} live={turn === open[0]} />
                  ))}
                </ol>
              )}
            </Loaded>
            <div ref={end} />
          </div>
          {may('runs:write') && <Composer agent={session.agent_id} sessionId={sessionId} onSent={() => undefined} />}
        </>
      )}
    </Loaded>
  )
}
