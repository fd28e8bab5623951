/* One definition: graph, JSON, versions, and what it is connected to. */
import { Download, MessagesSquare, Pencil, Play } from 'lucide-react'
import { useParams } from 'wouter'
import { formatJson } from '@/api/json'
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { NotFound } from '@/app/NotFound'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { visible } from '@/format/text'
import { Button, ButtonLink } from '@/parts/Button'
import { CopyRead } from '@/parts/CopyRead'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { Page, PageHeader } from '@/parts/Panel'
import { Tabs } from '@/parts/Tabs'
import { Time } from '@/parts/Time'
import { download } from '@/screens/runs/exportRows'
import { ConnectionTab } from './ConnectionTab'
import { DefinitionGraph } from './DefinitionGraph'
import { DefinitionJson } from './DefinitionJson'
import { isKind, type Kind, KINDS, targetOfDefinition } from './kinds'
import { useDefinition } from './useDefinitions'
import { UsesTab } from './UsesTab'
import { VersionsTab } from './VersionsTab'

function DefinitionView({ kind, id }: { kind: Kind; id: string }) {
  const address = useAddress()
  const { may } = useSession()
  const version = address.get('version') ?? undefined
  const query = useDefinition(kind, id, version)
  const tab = address.get('tab') ?? (kind === 'orchestrations' ? 'graph' : 'json')
  const target = targetOfDefinition(kind, id)
  const path = `/api/v2/${kind}/${encodeURIComponent(id)}`
  return (
    <Loaded query={query}>
      {(found) => (
        <>
          <PageHeader
            title={<span className="flex flex-wrap items-center gap-2">{visible(String(found.definition.name ?? id))} <Chip>{KINDS[kind].one.replace('_', ' ')}</Chip></span>}
            note={<><code className="font-mono text-xs">{id}</code> · version <code className="font-mono text-xs" title={found.version}>{found.version.slice(0, 8)}</code>{found.current ? '' : ' (not the current one)'} · <Time at={found.created_at} style="relative" /></>}
          >
            {target !== null && may('runs:write') && <ButtonLink look="main" icon={Play} to={`/start?target=${encodeURIComponent(target)}`}>Start a run</ButtonLink>}
            {kind === 'agents' && may('runs:write') && <ButtonLink icon={MessagesSquare} to={`/chat?new=1&agent=${encodeURIComponent(id)}`}>Chat</ButtonLink>}
            {target !== null && <ButtonLink to={`/runs?target=${encodeURIComponent(target)}&window=all&children=yes`}>Its runs</ButtonLink>}
            {may('definitions:write') && <ButtonLink icon={Pencil} to={`/definitions/${kind}/${encodeURIComponent(id)}/edit`}>Edit</ButtonLink>}
            <Button icon={Download} onClick={() => download(`${id.replace(/[^\w.-]/g, '_')}.json`, formatJson(found.definition), 'application/json')}>Download JSON</Button>
            <CopyRead path={path} cli={kind === 'orchestrations' ? asCli('graph', id) : asCli('bundle', 'export')} />
          </PageHeader>
          {typeof found.definition.description === 'string' && found.definition.description !== '' && <p className="max-w-[900px] break-words text-soft">{visible(found.definition.description)}</p>}
          <Tabs label="Views of the definition" selected={tab} link={(next) => address.link({ tab: next })} tabs={[...(kind === 'orchestrations' ? [{ id: 'graph', label: 'Graph' }] : []), { id: 'json', label: 'JSON' }, { id: 'versions', label: 'Versions' }, { id: 'uses', label: 'Dependencies' }, ...(kind === 'mcp-servers' ? [{ id: 'connection', label: 'Connection' }] : [])]} />
          <section className="min-h-0 flex-1 overflow-y-auto rounded-lg border border-line bg-surface">
            {tab === 'graph' && kind === 'orchestrations' && <DefinitionGraph id={id} version={version} selected={address.get('step')} onSelect={(step) => address.set({ step })} />}
            {tab === 'json' && <DefinitionJson kind={kind} definition={found.definition} />}
            {tab === 'versions' && <VersionsTab kind={kind} id={id} address={address} />}
            {tab === 'uses' && <UsesTab kind={kind} id={id} />}
            {tab === 'connection' && kind === 'mcp-servers' && <ConnectionTab id={id} />}
          </section>
        </>
      )}
    </Loaded>
  )
}

export default function DefinitionPage() {
  const { kind = '', id = '' } = useParams<{ kind: string; id: string }>()
  const name = decodeURIComponent(id)
  useTitle(name)
  return isKind(kind) ? <Page fill><DefinitionView key={`${kind} ${name}`} kind={kind} id={name} /></Page> : <NotFound />
}
