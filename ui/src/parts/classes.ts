/* Class names that depend on the tone of a status. Written out, because Tailwind reads the source. */
import type { Tone } from '@/text/status'

export function cx(...names: (string | false | null | undefined)[]): string {
  return names.filter(Boolean).join(' ')
}

export const TONE_TEXT: Record<Tone, string> = {
  ok: 'text-ok',
  bad: 'text-bad',
  busy: 'text-busy',
  wait: 'text-wait',
  person: 'text-person',
  idle: 'text-idle',
}

export const TONE_SOFT: Record<Tone, string> = {
  ok: 'bg-ok-soft text-ok',
  bad: 'bg-bad-soft text-bad',
  busy: 'bg-busy-soft text-busy',
  wait: 'bg-wait-soft text-wait',
  person: 'bg-person-soft text-person',
  idle: 'bg-idle-soft text-idle',
}

export const TONE_FILL: Record<Tone, string> = {
  ok: 'bg-ok',
  bad: 'bg-bad',
  busy: 'bg-busy',
  wait: 'bg-wait',
  person: 'bg-person',
  idle: 'bg-idle',
}
