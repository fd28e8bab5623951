/* A status by colour, icon and word: never by colour alone. */
import { statusText } from '@/text/status'
import { cx, TONE_SOFT, TONE_TEXT } from './classes'

export function Status({ value, plain = false }: { value: string; plain?: boolean }) {
  const { word, tone, icon: Icon, meaning } = statusText(value)
  return (
    <span
      title={meaning}
      className={cx(
        'inline-flex items-center gap-1 whitespace-nowrap',
        plain ? TONE_TEXT[tone] : cx('h-5 rounded-sm px-1.5 text-xs font-medium', TONE_SOFT[tone]),
      )}
    >
      <Icon size={13} aria-hidden className={value === 'running' ? 'pulse-running' : undefined} />
      {word}
    </span>
  )
}

export function StatusIcon({ value, size = 14 }: { value: string; size?: number }) {
  const { word, tone, icon: Icon } = statusText(value)
  return (
    <Icon size={size} role="img" aria-label={word} className={cx('shrink-0', TONE_TEXT[tone], value === 'running' && 'pulse-running')} />
  )
}
