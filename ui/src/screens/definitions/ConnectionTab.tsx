/* Whether the server can use an MCP server, and which tools agents get from it. */
import { useMutation } from '@tanstack/react-query'
import { CircleCheck, CircleX, PlugZap } from 'lucide-react'
import { call, type ResponseOf } from '@/api/client'
import type { ApiError } from '@/api/errors'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { asCli } from '@/format/command'
import { plural } from '@/format/number'
import { visible } from '@/format/text'
import { request } from '@/parts/action/action'
import { CopyRequest } from '@/parts/action/ActionDialog'
import { Button } from '@/parts/Button'
import { JsonView } from '@/parts/json/JsonView'
import { ErrorNote } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'

type Result = ResponseOf<'/api/v2/mcp-servers/{name}/check', 'post'>

function Tools({ tools }: { tools: Result['tools'] }) {
  return (
    <ul aria-label="Tools of the server" className="divide-y divide-line border-t border-line">
      {tools.map((tool) => (
        <li key={tool.name} className="px-3 py-2">
          <p className="flex flex-wrap items-center gap-2"><code className="font-mono text-xs">{visible(tool.name)}</code><Chip>{tool.effect}</Chip></p>
          <p className="break-words text-soft">{visible(tool.description)}</p>
          <details className="mt-1">
            <summary className="w-fit text-xs text-soft">Arguments</summary>
            <JsonView value={tool.input_schema} label={`the arguments of ${tool.name}`} openDepth={2} />
          </details>
        </li>
      ))}
    </ul>
  )
}

function Outcome({ result }: { result: Result }) {
  if (!result.usable) {
    return (
      <p role="status" className="flex items-start gap-2 px-3 pb-3 break-words">
        <CircleX size={15} aria-hidden className="mt-0.5 shrink-0 text-bad" />
        <span><b className="font-medium">It cannot be used ({result.error}).</b> {visible(result.message ?? '')}</span>
      </p>
    )
  }
  return (
    <>
      <p role="status" className="flex items-center gap-2 px-3 pb-3"><CircleCheck size={15} aria-hidden className="text-ok" /> It answers, with {plural(result.tools.length, 'tool')}.</p>
      <Tools tools={result.tools} />
    </>
  )
}

export function ConnectionTab({ id }: { id: string }) {
  const { may } = useSession()
  const query = useTenantParam()
  const check = useMutation<Result, ApiError>({ mutationFn: () => call('post', '/api/v2/mcp-servers/{name}/check', { path: { name: id }, query }) })
  return (
    <>
      <div className="flex flex-wrap items-center gap-3 p-3">
        <Button look="main" icon={PlugZap} disabled={check.isPending} refused={may('runs:write') ? null : 'Checking needs the permission runs:write.'} onClick={() => check.mutate()}>{check.isPending ? 'Connecting …' : 'Check the connection'}</Button>
        <CopyRequest request={request('post', '/api/v2/mcp-servers/{name}/check', { path: { name: id }, query, cli: asCli('mcp', 'check', id) })} />
        <p className="min-w-60 flex-1 text-soft">The server connects as agents do, with the stored definition and its secrets, and lists the tools. No tool is called.</p>
      </div>
      {check.error !== null && <ErrorNote error={check.error} />}
      {check.data !== undefined && <Outcome result={check.data} />}
    </>
  )
}
