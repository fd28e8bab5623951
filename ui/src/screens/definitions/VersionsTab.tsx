/* The versions of a definition, and what differs between two of them. */
import { type Address } from '@/app/address'
import { LineDiff } from '@/parts/diff/LineDiff'
import { ButtonLink } from '@/parts/Button'
import { Select } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Chip } from '@/parts/Meter'
import { Time } from '@/parts/Time'
import { type Kind, targetOfDefinition } from './kinds'
import { useDefinition, useVersions } from './useDefinitions'

function Diff({ kind, id, from, to }: { kind: Kind; id: string; from: string; to: string }) {
  const before = useDefinition(kind, id, from)
  const after = useDefinition(kind, id, to)
  return (
    <Loaded query={before}>
      {(older) => <Loaded query={after}>{(newer) => <LineDiff label="Difference of the versions" before={older.definition} after={newer.definition} />}</Loaded>}
    </Loaded>
  )
}

export function VersionsTab({ kind, id, address }: { kind: Kind; id: string; address: Address }) {
  const query = useVersions(kind, id)
  return (
    <Loaded query={query}>
      {({ versions }) => {
        const to = address.get('to') ?? versions[0]?.version ?? ''
        const from = address.get('from') ?? versions[1]?.version ?? to
        const options = versions.map(({ version, current }): [string, string] => [version, `${version.slice(0, 8)}${current ? ' (current)' : ''}`])
        const target = targetOfDefinition(kind, id)
        return (
          <div className="grid gap-4 p-3 lg:grid-cols-[400px_1fr]">
            <ol aria-label="Versions" className="flex flex-col divide-y divide-line">
              {versions.map((version) => (
                <li key={version.version} className="flex flex-wrap items-center gap-2 py-1.5">
                  <code className="font-mono text-xs" title={version.version}>{version.version.slice(0, 8)}</code>
                  {version.current && <Chip tone="ok">current</Chip>}
                  <span className="text-soft"><Time at={version.created_at} style="relative" /></span>
                  {target !== null && <ButtonLink small to={`/runs?target=${encodeURIComponent(target)}&version=${encodeURIComponent(version.version)}&window=all&children=yes`}>Runs of this version</ButtonLink>}
                  <ButtonLink small to={address.link({ tab: 'json', version: version.version })}>JSON</ButtonLink>
                </li>
              ))}
            </ol>
            <div className="flex min-w-0 flex-col gap-2">
              {versions.length < 2 ? (
                <p className="text-soft">There is one version. Sync or save a change, and the difference appears here.</p>
              ) : (
                <>
                  <div className="flex flex-wrap items-center gap-2">
                    <Select aria-label="Older version" value={from} options={options} onChange={(event) => address.set({ from: event.target.value })} />
                    <span aria-hidden>→</span>
                    <Select aria-label="Newer version" value={to} options={options} onChange={(event) => address.set({ to: event.target.value })} />
                  </div>
                  <Diff kind={kind} id={id} from={from} to={to} />
                </>
              )}
            </div>
          </div>
        )
      }}
    </Loaded>
  )
}
