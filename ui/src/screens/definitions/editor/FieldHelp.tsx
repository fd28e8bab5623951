/* The description of the field under the cursor, from the schema that the server checks definitions with. */
import type { FieldText } from './describe'

export function FieldHelp({ field }: { field: FieldText | null }) {
  return (
    <p role="note" aria-label="Field under the cursor" className="h-15 shrink-0 overflow-y-auto border-t border-line bg-sunken px-3 py-1.5 text-xs">
      {field === null ? (
        <span className="text-soft">Move the cursor to a field to read what it means.</span>
      ) : (
        <>
          <code className="mr-2 font-mono font-medium">{field.place}</code>
          {field.about} <span className="text-soft">{field.facts}</span>
        </>
      )}
    </p>
  )
}
