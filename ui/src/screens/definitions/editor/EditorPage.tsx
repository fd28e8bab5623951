/* Edit a definition as JSON, with the server's checks, beside its graph. */
import { AlignLeft, CopyPlus, Download, Save } from 'lucide-react'
import { useMemo, useState } from 'react'
import { useLocation, useParams } from 'wouter'
import { formatJson } from '@/api/json'
import { useApi } from '@/api/query'
import { useTitle } from '@/app/inboxCount'
import { useTenantParam } from '@/app/tenant'
import { NotFound } from '@/app/NotFound'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Button, ButtonLink } from '@/parts/Button'
import { cx } from '@/parts/classes'
import { LineDiff } from '@/parts/diff/LineDiff'
import { lazily } from '@/parts/lazily'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { Page, PageHeader } from '@/parts/Panel'
import { download } from '@/screens/runs/exportRows'
import { useTargets } from '@/screens/start/targets'
import { EDITOR_SOURCE, isKind, type Kind, KINDS } from '../kinds'
import { type Summary, useDefinition, useDefinitionList, type Version } from '../useDefinitions'
import { vocabularyOf } from './complete'
import { describeField, type Path } from './describe'
import { FieldHelp } from './FieldHelp'
import { TextGraph } from './TextGraph'
import { type Checked, useCheck } from './useCheck'

const JsonEditor = lazily(() => import('./JsonEditor'), 10)

const EMPTY: Record<Kind, object> = {
  orchestrations: { id: 'new_orchestration', name: 'New orchestration', steps: [{ id: 'say', type: 'print', print_content: 'Hello {state.user_input}.' }] },
  agents: { id: 'new_agent', name: 'New agent', system_prompt: 'You help people. Be brief.' },
  tools: { id: 'new_tool', name: 'new_tool', description: 'What the tool does, for the model.', tool_type: 'task', task: 'task_name', input_schema: { type: 'object', properties: {} } },
  'mcp-servers': { id: 'new_server', name: 'New server', transport: 'http', url: 'https://example.com/mcp' },
  triggers: { id: 'new_trigger', event: 'order.created', target: { kind: 'task', name: 'task_name' } },
}

function useLanguage(kind: Kind) {
  const schema = useApi('/api/v2/schemas/{kind}', { path: { kind: KINDS[kind].one as never } }, { staleMs: 600_000 })
  const { targets } = useTargets()
  const tools = useDefinitionList('tools')
  const vocabulary = useMemo(() => vocabularyOf(schema.data, [...targets.map((target) => target.name), ...tools.rows.map((tool) => tool.id)]), [schema.data, targets, tools.rows])
  return { vocabulary, schema: schema.data }
}

function CheckState({ checked }: { checked: Checked }) {
  const errors = checked.findings.filter((finding) => finding.severity === 'error').length
  if (checked.state === 'broken') return <Chip tone="bad">not valid JSON</Chip>
  if (checked.state === 'checking') return <Chip tone="idle">checking …</Chip>
  if (checked.state === 'unknown') return <Chip tone="wait" title={checked.problem ?? undefined}>not checked</Chip>
  if (checked.state === 'invalid') return <Chip tone="bad">{plural(Math.max(1, errors), 'error')}</Chip>
  if (checked.state === 'unchanged') return <Chip tone="idle">no change</Chip>
  return checked.findings.length > 0 ? <Chip tone="wait">valid, {plural(checked.findings.length, 'warning')}</Chip> : <Chip tone="ok">valid</Chip>
}

function SaveDialog({ kind, base, definition, onClose }: { kind: Kind; base: Version | null; definition: Record<string, unknown>; onClose: () => void }) {
  const [, navigate] = useLocation()
  const tenant = useTenantParam()
  const id = String(definition.id ?? '')
  return (
    <ActionDialog
      wide
      onClose={onClose}
      action={{
        id: 'save', label: 'Save', icon: Save,
        title: base === null ? `Create ${id}` : `Save ${id}`,
        consequence: base === null ? 'The definition is stored with its first version and can be used at once.' : 'A new version is stored and used by runs that are started from now on. Runs that have been started stay on their version. If another version was stored meanwhile, the server refuses this one.',
        verb: base === null ? 'Create' : 'Save the new version',
        request: request('put', '/api/v2/definitions/{kind}/{name}', {
          path: { kind, name: id },
          body: { definition, ...tenant },
          headers: base === null ? undefined : { 'if-match': `"${base.version}"` },
          cli: asCli('sync', '--dir', 'definitions', '--source', EDITOR_SOURCE),
        }),
        done: 'The definition is stored.',
        after: () => navigate(`/definitions/${kind}/${encodeURIComponent(id)}`),
      }}
    >
      <LineDiff label="Change of the definition" before={base?.definition} after={definition} />
    </ActionDialog>
  )
}

function Findings({ checked, onStep }: { checked: Checked; onStep: (step: string | null) => void }) {
  if (checked.findings.length === 0) return null
  return (
    <ul aria-label="Findings" className="max-h-40 overflow-y-auto border-t border-line">
      {checked.findings.map((finding) => (
        <li key={finding.pointer + finding.message} className="border-b border-line px-3 py-1.5 last:border-b-0">
          <button type="button" onClick={() => onStep(finding.step)} className="text-left">
            <code className={cx('font-mono text-xs', finding.severity === 'error' ? 'text-bad' : 'text-wait')}>{finding.pointer || '/'}</code> <span className="break-words">{finding.message}</span>
          </button>
        </li>
      ))}
    </ul>
  )
}

function Editor({ kind, base, summary }: { kind: Kind; base: Version | null; summary: Summary | undefined }) {
  const [text, setText] = useState(() => formatJson(base?.definition ?? EMPTY[kind]))
  const [copied, setCopied] = useState(false)
  const [saving, setSaving] = useState(false)
  const [step, setStep] = useState<string | null>(null)
  const { vocabulary, schema } = useLanguage(kind)
  const [path, setPath] = useState<Path | null>([])
  const checked = useCheck(kind, text)
  const owner = base === null || copied ? null : (summary?.source ?? null)
  const locked = owner !== null && owner !== EDITOR_SOURCE
  const name = base?.id ?? 'new'
  const copy = () => {
    const definition = { ...base?.definition, id: `${name}_copy`, ...(kind === 'tools' ? { name: `${name}_copy` } : {}) }
    setText(formatJson(definition))
    setCopied(true)
  }
  const refused = locked ? `The definition belongs to the source "${owner}".` : checked.state === 'valid' ? null : checked.state === 'checking' ? 'The server checks the text.' : (checked.problem ?? 'Correct the errors first.')
  const stored = copied ? null : base
  return (
    <>
      <PageHeader title={<span className="flex flex-wrap items-center gap-2">{base === null ? `New ${KINDS[kind].one.replace('_', ' ')}` : `Edit ${name}`} <CheckState checked={checked} /></span>}>
        <Button icon={AlignLeft} refused={checked.definition === null ? 'The text is not valid JSON.' : null} onClick={() => checked.definition !== null && setText(formatJson(checked.definition))}>Format</Button>
        <Button icon={Download} onClick={() => download(`${name.replace(/[^\w.-]/g, '_')}.json`, text, 'application/json')}>Download JSON</Button>
        {base !== null && !copied && <Button icon={CopyPlus} onClick={copy}>Edit a copy</Button>}
        <Button look="main" icon={Save} refused={refused} onClick={() => setSaving(true)}>Save</Button>
        {base !== null && <ButtonLink to={`/definitions/${kind}/${encodeURIComponent(name)}`}>Close</ButtonLink>}
      </PageHeader>
      {locked && <p role="status" className="rounded-md bg-wait-soft px-3 py-1.5 text-wait">The definition comes from the source "{owner}", such as files in Git; the next sync would overwrite a change made here. Change it there, or edit a copy.</p>}
      <section className="grid min-h-0 flex-1 overflow-hidden rounded-lg border border-line bg-surface lg:grid-cols-2">
        <div className="flex min-h-[300px] flex-col border-r border-line">
          <div className="min-h-0 flex-1"><JsonEditor key={copied ? 'copy' : 'own'} text={text} onChange={setText} findings={checked.findings} vocabulary={vocabulary} readOnly={locked} step={step} onStep={setStep} onPath={setPath} describe={(at) => describeField(schema, checked.definition, at)} /></div>
          <FieldHelp field={path === null || checked.definition === null ? null : describeField(schema, checked.definition, path)} />
          <Findings checked={checked} onStep={setStep} />
        </div>
        <div className="min-h-[300px] overflow-hidden">
          {kind === 'orchestrations' ? <TextGraph checked={checked} selected={step} onSelect={setStep} /> : <p className="p-3 text-soft">{KINDS[kind].about}</p>}
        </div>
      </section>
      {saving && checked.definition !== null && <SaveDialog kind={kind} base={stored} definition={checked.definition} onClose={() => setSaving(false)} />}
    </>
  )
}

function Existing({ kind, id }: { kind: Kind; id: string }) {
  const query = useDefinition(kind, id)
  const { query: list, rows } = useDefinitionList(kind)
  // The text belongs to the version that was opened, even if another one is stored meanwhile.
  const [base, setBase] = useState<Version | null>(null)
  if (base === null && query.data !== undefined) setBase(query.data)
  return <Loaded query={list}>{() => <Loaded query={query}>{() => base !== null && <Editor kind={kind} base={base} summary={rows.find((row) => row.id === id)} />}</Loaded>}</Loaded>
}

export default function EditorPage() {
  const { kind = '', id = '' } = useParams<{ kind: string; id: string }>()
  const name = decodeURIComponent(id)
  useTitle(name === 'new' ? 'New definition' : `Edit ${name}`)
  if (!isKind(kind)) return <NotFound />
  return <Page fill>{name === 'new' ? <Editor key={kind} kind={kind} base={null} summary={undefined} /> : <Existing key={`${kind} ${name}`} kind={kind} id={name} />}</Page>
}
