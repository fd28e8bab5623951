/* Buttons and links that look like buttons. Every target is at least 24 px high. */
import type { LucideIcon } from 'lucide-react'
import type { ButtonHTMLAttributes, ReactNode, Ref } from 'react'
import { Link } from 'wouter'
import { cx } from './classes'

export type Look = 'normal' | 'main' | 'danger' | 'quiet'

const LOOKS: Record<Look, string> = {
  normal: 'border border-line-strong bg-surface hover:bg-hover',
  main: 'border border-accent bg-accent text-accent-ink hover:opacity-90',
  danger: 'border border-bad text-bad bg-surface hover:bg-bad-soft',
  quiet: 'border border-transparent text-soft hover:bg-hover hover:text-ink',
}

const SHAPE =
  'inline-flex shrink-0 items-center justify-center gap-1.5 rounded-md whitespace-nowrap disabled:opacity-50 disabled:cursor-not-allowed'

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  look?: Look
  icon?: LucideIcon
  small?: boolean
  children?: ReactNode
  ref?: Ref<HTMLButtonElement>
  /** Why the button cannot be used now; it is disabled and shows the reason. */
  refused?: string | null
}

export function Button({ look = 'normal', icon: Icon, small = false, children, className, refused, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      disabled={rest.disabled === true || (refused !== undefined && refused !== null)}
      title={refused ?? rest.title}
      className={cx(SHAPE, LOOKS[look], small ? 'h-6 px-2 text-xs' : 'h-7.5 px-2.5', className)}
    >
      {Icon !== undefined && <Icon size={small ? 13 : 15} aria-hidden />}
      {children}
    </button>
  )
}

export function IconButton({ label, icon: Icon, className, ...rest }: { label: string; icon: LucideIcon; ref?: Ref<HTMLButtonElement> } & ButtonHTMLAttributes<HTMLButtonElement>) {
  return (
    <button
      type="button"
      aria-label={label}
      title={label}
      {...rest}
      className={cx(SHAPE, 'size-7 text-soft hover:bg-hover hover:text-ink', className)}
    >
      <Icon size={15} aria-hidden />
    </button>
  )
}

export function ButtonLink({ to, look = 'normal', icon: Icon, children, small = false }: { to: string; look?: Look; icon?: LucideIcon; children: ReactNode; small?: boolean }) {
  return (
    <Link href={to} className={cx(SHAPE, LOOKS[look], small ? 'h-6 px-2 text-xs' : 'h-7.5 px-2.5')}>
      {Icon !== undefined && <Icon size={small ? 13 : 15} aria-hidden />}
      {children}
    </Link>
  )
}
