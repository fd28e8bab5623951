/* Begin a conversation: choose the agent, send the first message. */
import { Bot } from 'lucide-react'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { useApi } from '@/api/query'
import { useTenantParam } from '@/app/tenant'
import { visible } from '@/format/text'
import { Empty } from '@/parts/Empty'
import { Field, Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Composer } from './Composer'

export function NewConversation({ agent }: { agent: string | null }) {
  const agents = useApi('/api/v2/agents', { query: { limit: 200, ...useTenantParam() } }, { topics: ['definitions'] })
  const [chosen, setChosen] = useState<string | null>(agent)
  const [, navigate] = useLocation()
  return (
    <Loaded query={agents}>
      {({ agents: list }) => {
        if (list.length === 0) {
          return (
            <Empty icon={Bot} title="No agent exists yet" command="runlane sync --dir definitions">
              An agent is a model with instructions and tools. Write it as a JSON file in definitions/agents.
            </Empty>
          )
        }
        const name = chosen ?? list[0]!.id
        const about = list.find((candidate) => candidate.id === name)
        return (
          <>
            <div className="mx-auto w-full max-w-[860px] flex-1 p-4">
              <h1 className="mb-3 text-lg font-semibold">New conversation</h1>
              <Field label="Agent" hint={about?.description ? visible(about.description) : undefined}>
                {(ids) => <Select {...ids} value={name} options={list.map((entry) => [entry.id, entry.name === entry.id ? entry.id : `${entry.name} (${entry.id})`])} onChange={(event) => setChosen(event.target.value)} />}
              </Field>
              <p className="mt-3 text-soft">Each message is a durable run: it survives a restart of the server, and tool calls that need an approval are asked in place.</p>
            </div>
            <Composer agent={name} sessionId={null} onSent={(sent) => navigate(`/chat/${sent.session_id}`)} />
          </>
        )
      }}
    </Loaded>
  )
}
