/* A definition as JSON, with the meaning of each field from the schema of its kind. */
import { useApi } from '@/api/query'
import { usePreference } from '@/app/preferences'
import { Check } from '@/parts/form/Field'
import { JsonView } from '@/parts/json/JsonView'
import { describeField } from './editor/describe'
import { type Kind, KINDS } from './kinds'

export function DefinitionJson({ kind, definition }: { kind: Kind; definition: Record<string, unknown> }) {
  const [described, setDescribed] = usePreference('definition.described', true)
  const schema = useApi('/api/v2/schemas/{kind}', { path: { kind: KINDS[kind].one as never } }, { staleMs: 600_000, enabled: described }).data
  return (
    <div className="flex flex-col gap-1 p-3">
      <span className="max-md:hidden">
        <Check label="Describe the fields" checked={described} onChange={(event) => setDescribed(event.target.checked)} />
      </span>
      <JsonView value={definition} label="the definition" openDepth={3} describe={described && schema !== undefined ? (path) => describeField(schema, definition, path)?.about : undefined} />
    </div>
  )
}
