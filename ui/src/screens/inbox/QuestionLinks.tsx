/* The links that may still answer a question, each with its end. */
import { Unlink } from 'lucide-react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import type { Question } from '@/api/types'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { formatJson } from '@/api/json'
import { oneLine, visible } from '@/format/text'
import { type Action, request } from '@/parts/action/action'
import { ActionButton } from '@/parts/action/ActionButtons'
import { Time } from '@/parts/Time'

type ActionLink = components['schemas']['ActionLink']

function revokeAction(link: ActionLink): Action {
  return {
    id: 'revoke-link', label: 'Revoke', icon: Unlink, danger: true, title: `Revoke the link for ${visible(link.person)}`, verb: 'Revoke the link',
    consequence: `The link for ${visible(link.person)} answers nothing from now on. The question stays open. This cannot be undone; another link can be made.`,
    request: request('delete', '/api/v2/inbox/links/{link_id}', { path: { link_id: link.id }, cli: asCli('links', 'revoke', link.id) }),
    done: 'The link is revoked.',
  }
}

export function QuestionLinks({ question }: { question: Question }) {
  const { info, may } = useSession()
  const enabled = info.features?.action_links === true
  const query = useApi('/api/v2/inbox/links', { query: { run_id: question.run_id } }, { topics: ['inbox'], enabled })
  const links = (query.data?.links ?? []).filter((link) => link.path === question.path)
  if (links.length === 0) return null
  return (
    <section aria-label="Links that answer this question" className="rounded-md border border-line bg-surface">
      <h2 className="border-b border-line px-3 py-1.5 text-xs font-medium text-soft">Links that answer this question</h2>
      <ul className="divide-y divide-line">
        {links.map((link) => (
          <li key={link.id} className="flex flex-wrap items-center gap-x-4 gap-y-1 px-3 py-1.5">
            <span className="font-medium">{visible(link.person)}</span>
            <code className="min-w-0 flex-1 truncate font-mono text-xs text-soft">{oneLine(typeof link.response === 'string' ? link.response : formatJson(link.response), 120)}</code>
            <span className="text-soft">by {visible(link.created_by)}, ends <Time at={link.expires_at} style="relative" /></span>
            {may('runs:write') && <ActionButton small action={revokeAction(link)} />}
          </li>
        ))}
      </ul>
    </section>
  )
}
