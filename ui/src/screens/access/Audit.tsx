/* Who changed what, with the state before and after. */
import { ScrollText } from 'lucide-react'
import { useState } from 'react'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { type Address } from '@/app/address'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { oneLine, visible } from '@/format/text'
import { Dialog } from '@/parts/Dialog'
import { LineDiff } from '@/parts/diff/LineDiff'
import { Empty } from '@/parts/Empty'
import { TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { PagesFooter, usePages } from '@/parts/pages'
import { Facts, Panel } from '@/parts/Panel'
import { Time } from '@/parts/Time'
import { changeText } from './changeText'

type Entry = components['schemas']['AuditEntry']

function Filter({ address, name, label }: { address: Address; name: string; label: string }) {
  return <TextInput key={address.get(name) ?? ''} aria-label={label} placeholder={label} className="w-36!" defaultValue={address.get(name) ?? ''} onKeyDown={(event) => event.key === 'Enter' && address.set({ [name]: event.currentTarget.value || null })} onBlur={(event) => event.target.value !== (address.get(name) ?? '') && address.set({ [name]: event.target.value || null })} />
}

/** Names of keys by their ids: the log has the id, people know the name. */
function useKeyNames(): Map<string, string> {
  const { may } = useSession()
  const keys = useApi('/api/v2/keys', { query: { limit: 1000, ...useTenantParam() } }, { topics: ['access'], enabled: may('keys:manage'), staleMs: 60_000 })
  return new Map((keys.data?.keys ?? []).map((key) => [key.id, key.name]))
}

/** The ids of the keys with this name. Without such a key, the given string is an id itself. */
function actorsOf(text: string, names: Map<string, string>): string[] {
  const ids = [...names].filter(([, name]) => name.toLowerCase() === text.trim().toLowerCase()).map(([id]) => id)
  return ids.length === 0 ? [text.trim()] : ids.slice(0, 100)
}

export function Audit({ address }: { address: Address }) {
  const [opened, setOpened] = useState<Entry | null>(null)
  const actor = address.get('actor')
  const names = useKeyNames()
  const nameOf = (entry: Entry) => names.get(entry.actor) ?? entry.actor
  const { query, pages } = usePages('/api/v2/audit', { query: { action: address.get('action') ?? undefined, subject: address.get('subject') ?? undefined, actor: actor === null ? undefined : actorsOf(actor, names), ...useTenantParam() } }, { topics: ['access'] })
  const entries = pages.flatMap((page) => page.entries)
  return (
    <Panel title="Audit log" flush actions={<span className="flex flex-wrap gap-1.5"><Filter address={address} name="actor" label="Actor" /><Filter address={address} name="action" label="Action" /><Filter address={address} name="subject" label="Subject" /></span>}>
      <Loaded query={query}>
        {() => (
          <>
            {entries.length === 0 && <Empty icon={ScrollText} title="No entry matches" command="runlane audit list">Administrative changes are recorded: lanes, limits, keys, tenants, secrets, definitions, bulk jobs.</Empty>}
            <div aria-hidden className="flex gap-x-4 border-b border-line px-3 py-1.5 text-2xs font-medium text-faint max-md:hidden">
              <span className="w-36">When</span>
              <span className="w-32">Actor</span>
              <span className="w-44">Action</span>
              <span className="w-40">Subject</span>
              <span className="flex-1">Change</span>
              <span>Tenant</span>
            </div>
            <ul aria-label="Audit entries" className="divide-y divide-line">
              {entries.map((entry) => (
                <li key={entry.id}>
                  <button type="button" onClick={() => setOpened(entry)} className="flex w-full flex-wrap gap-x-4 gap-y-0.5 px-3 py-1.5 text-left hover:bg-hover">
                    <span className="w-36 text-soft"><Time at={entry.at} style="exact" /></span>
                    <span className="w-32 truncate font-medium" title={entry.actor}>{visible(nameOf(entry))}</span>
                    <code className="w-44 truncate font-mono text-xs">{entry.action}</code>
                    <span className="w-40 truncate" title={visible(entry.subject)}>{oneLine(entry.subject, 120)}</span>
                    <span className="min-w-40 flex-1 truncate text-soft" title={changeText(entry.old, entry.new)}>{changeText(entry.old, entry.new)}</span>
                    <span className="text-soft">{entry.tenant}</span>
                  </button>
                </li>
              ))}
            </ul>
            <p className="flex items-center gap-2 px-3 py-2 text-soft"><PagesFooter query={query} count={entries.length} noun="entry" many="entries" /></p>
          </>
        )}
      </Loaded>
      {opened !== null && (
        <Dialog wide title={opened.action} onClose={() => setOpened(null)}>
          <Facts items={[['When', <Time key="at" at={opened.at} style="exact" />], ['Actor', visible(nameOf(opened))], ['Key', opened.actor], ['Subject', visible(opened.subject)], ['Tenant', opened.tenant]]} />
          <h3 className="mt-3 mb-1 font-semibold">Before and after</h3>
          <LineDiff label="Change" before={opened.old ?? undefined} after={opened.new ?? undefined} />
        </Dialog>
      )}
    </Panel>
  )
}
