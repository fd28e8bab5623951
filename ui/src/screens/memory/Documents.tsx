/* The documents of a memory: its context, and other named fragments. */
import { Pencil } from 'lucide-react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useAddress } from '@/app/address'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { formatBytes } from '@/format/number'
import { visible } from '@/format/text'
import { request } from '@/parts/action/action'
import { field, FormAction } from '@/parts/action/FormAction'
import { Empty } from '@/parts/Empty'
import { Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import { MEMORY_LIVE } from './memoryLive'

type Memory = components['schemas']['Memory']

function Document({ memory, name }: { memory: Memory; name: string }) {
  const { may } = useSession()
  const tenant = useTenantParam()
  const path = { memory_id: memory.id, name }
  const query = useApi('/api/v2/memory/memories/{memory_id}/fragments/{name}', { path, query: tenant }, MEMORY_LIVE)
  return (
    <Loaded query={query}>
      {(found) => (
        <div className="flex flex-col gap-2">
          <div className="flex flex-wrap items-center gap-3 text-xs text-soft">
            <span>{formatBytes(found.size)}</span>
            <span>written <Time at={found.updated_at} style="relative" /></span>
            {may('memory:write') && (
              <span className="ml-auto">
                <FormAction
                  label="Edit"
                  icon={Pencil}
                  small
                  wide
                  initial={{ content: found.content }}
                  fields={[field('content', 'Content', { control: 'long', required: true })]}
                  build={(values) => ({
                    id: 'put-fragment', label: 'Edit', icon: Pencil, title: `Write ${name}`, verb: 'Write the document', done: 'The document is written.',
                    consequence: 'It replaces what is stored now. Agents read it from their next turn on.',
                    request: request('put', '/api/v2/memory/memories/{memory_id}/fragments/{name}', { path, query: tenant as never, body: { content: String(values.content ?? '') } as never, cli: asCli('memory', 'put-context', memory.id, '--name', name, '--file', 'FILE') }),
                  })}
                />
              </span>
            )}
          </div>
          {found.content === '' ? <p className="text-soft">The document is empty.</p> : <pre tabIndex={0} aria-label={name} className="max-h-[60dvh] overflow-auto rounded-md bg-sunken p-3 font-mono text-xs break-words whitespace-pre-wrap">{visible(found.content)}</pre>}
        </div>
      )}
    </Loaded>
  )
}

export function Documents({ memory }: { memory: Memory }) {
  const address = useAddress()
  const query = useApi('/api/v2/memory/memories/{memory_id}/fragments', { path: { memory_id: memory.id }, query: useTenantParam() }, MEMORY_LIVE)
  return (
    <Panel title="Documents">
      <Loaded query={query}>
        {({ fragments }) => {
          const name = address.get('document') ?? fragments[0]?.name
          if (name === undefined) return <Empty title="This memory has no documents" command={`runlane memory put-context ${memory.id} --file context.md`}>The context document is what an agent reads before each turn.</Empty>
          return (
            <div className="flex flex-col gap-3">
              {fragments.length > 1 && <Select aria-label="Document" value={name} options={fragments.map((fragment) => [fragment.name, fragment.name])} onChange={(event) => address.set({ document: event.target.value })} />}
              <Document key={name} memory={memory} name={name} />
            </div>
          )
        }}
      </Loaded>
    </Panel>
  )
}
