/* The choice of a decision as large buttons, each with its key. */
import type { FormField } from '@/parts/form/schema'
import { cx } from '@/parts/classes'

const KEYS: Record<string, string> = { approve: 'A', deny: 'D', edit: 'E' }

export function Decision({ field, value, onChange, problem }: { field: FormField; value: string; onChange: (option: string) => void; problem?: string }) {
  return (
    <fieldset>
      <legend className="mb-1 font-medium">{field.label}</legend>
      <div className="flex flex-wrap gap-2">
        {field.options.map((option) => (
          <label
            key={option}
            className={cx(
              'flex h-8 cursor-pointer items-center gap-2 rounded-md border px-3 has-focus-visible:outline-2 has-focus-visible:outline-focus',
              value === option ? 'border-accent bg-accent-soft font-medium' : 'border-line-strong bg-surface hover:bg-hover',
            )}
          >
            <input type="radio" name={field.name} value={option} checked={value === option} onChange={() => onChange(option)} className="accent-accent" />
            {option}
            {KEYS[option] !== undefined && <kbd className="rounded-xs border border-line px-1 font-mono text-2xs text-faint">{KEYS[option]}</kbd>}
          </label>
        ))}
      </div>
      {problem !== undefined && <p role="alert" className="mt-1 text-xs text-bad">{problem}</p>}
    </fieldset>
  )
}
