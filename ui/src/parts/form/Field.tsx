/* Inputs with a label, a hint and the server's message at the field. */
import { type InputHTMLAttributes, type ReactNode, type SelectHTMLAttributes, type TextareaHTMLAttributes, useId } from 'react'
import { cx } from '../classes'

const BOX = 'w-full rounded-md border bg-surface px-2 placeholder:text-faint disabled:bg-sunken'

interface FieldProps {
  label: ReactNode
  hint?: ReactNode
  problem?: string | null
  required?: boolean
  children: (ids: { id: string; 'aria-describedby'?: string; 'aria-invalid'?: boolean }) => ReactNode
}

export function Field({ label, hint, problem, required = false, children }: FieldProps) {
  const id = useId()
  const described = [hint !== undefined && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(' ')
  return (
    <div className="flex min-w-0 flex-col gap-1">
      <label htmlFor={id} className="font-medium">
        {label}
        {required && <span className="text-bad" title="Required"> *</span>}
      </label>
      {children({ id, 'aria-describedby': described === '' ? undefined : described, 'aria-invalid': problem ? true : undefined })}
      {hint !== undefined && (
        <p id={`${id}-hint`} className="text-xs text-faint">
          {hint}
        </p>
      )}
      {problem && (
        <p id={`${id}-problem`} role="alert" className="text-xs text-bad">
          {problem}
        </p>
      )}
    </div>
  )
}

function border(invalid: unknown): string {
  return invalid === true || invalid === 'true' ? 'border-bad' : 'border-line-strong'
}

export function TextInput(props: InputHTMLAttributes<HTMLInputElement>) {
  return <input type="text" autoComplete="off" spellCheck={false} {...props} className={cx(BOX, 'h-7.5', border(props['aria-invalid']), props.className)} />
}

export function TextArea({ mono = false, ...props }: TextareaHTMLAttributes<HTMLTextAreaElement> & { mono?: boolean }) {
  return <textarea rows={4} spellCheck={false} {...props} className={cx(BOX, 'py-1.5', mono && 'font-mono text-xs', border(props['aria-invalid']), props.className)} />
}

/** The browser's own select: no style injection, and its keyboard and touch behaviour are known to everyone. */
export function Select({ options, ...props }: SelectHTMLAttributes<HTMLSelectElement> & { options: [value: string, label: string][] }) {
  return (
    <select {...props} className={cx('h-7.5 rounded-md border bg-surface px-1.5', border(props['aria-invalid']), props.className)}>
      {options.map(([value, label]) => (
        <option key={value} value={value}>
          {label}
        </option>
      ))}
    </select>
  )
}

export function Check({ label, ...props }: { label: ReactNode } & InputHTMLAttributes<HTMLInputElement>) {
  return (
    <label className="flex min-h-6 items-center gap-2">
      <input type="checkbox" {...props} className="size-4 accent-accent" />
      <span>{label}</span>
    </label>
  )
}
