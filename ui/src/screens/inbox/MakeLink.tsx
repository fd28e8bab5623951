/* A link that answers one question for one person without a key, where the server allows links. */
import { Link as LinkIcon } from 'lucide-react'
import { useState } from 'react'
import type { components } from '@/api/schema'
import type { Question } from '@/api/types'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { request } from '@/parts/action/action'
import { field, FormAction } from '@/parts/action/FormAction'
import { questionFields } from '@/parts/form/schema'
import { Time } from '@/parts/Time'
import { ShownOnce } from '@/screens/webhooks/SecretDialog'

type ActionLink = components['schemas']['ActionLink']

const PERSON = field('person', 'Person', { required: true, hint: 'For whom the link is made. The answer and the audit log name this person.' })
const TEXT = field('response', 'Answer', { required: true })

function linkCommand(question: Question, person: string, answer: string): string {
  return asCli('links', 'create', question.run_id, question.path, '--person', person, '--answer', answer)
}

export function MakeLink({ question }: { question: Question }) {
  const { info } = useSession()
  const [made, setMade] = useState<ActionLink | null>(null)
  if (info.features?.action_links !== true || (question.about !== 'step' && question.about !== 'approval')) return null
  const own = questionFields(question.fields)
  return (
    <>
      <FormAction
        small
        label="Make a link"
        icon={LinkIcon}
        fields={[PERSON, ...(own.length === 0 ? [TEXT] : own)]}
        build={({ person, ...values }) => ({
          id: 'make-link', label: 'Make a link', icon: LinkIcon, title: 'Make a link that gives this answer', verb: 'Make the link',
          consequence: 'Everyone who has the link can give this answer, without a key, once. It ends with the question, and after 72 hours at most. Opening it changes nothing.',
          request: request('post', '/api/v2/inbox/links', { body: { run_id: question.run_id, path: question.path, person: String(person ?? ''), response: own.length === 0 ? String(values.response ?? '') : values } as never, cli: linkCommand(question, String(person ?? ''), own.length === 0 ? String(values.response ?? '') : JSON.stringify(values)) }),
          done: 'The link is made.',
          after: (response) => setMade(response as ActionLink),
        })}
      />
      {made !== null && (
        <ShownOnce title={`The link for ${made.person}`} value={made.url ?? ''} onClose={() => setMade(null)}>
          <p className="text-soft">It ends <Time at={made.expires_at} style="exact" />, or with the question.</p>
        </ShownOnce>
      )}
    </>
  )
}
