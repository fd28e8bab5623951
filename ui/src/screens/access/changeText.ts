/* What an audit entry changed, in one line: the fields that differ, with the value before and after. */
import { oneLine } from '@/format/text'

type Values = Record<string, unknown>

const MOST = 4
const LONGEST = 32

const isValues = (value: unknown): value is Values => typeof value === 'object' && value !== null && !Array.isArray(value)
const same = (one: unknown, other: unknown) => JSON.stringify(one) === JSON.stringify(other)

function shown(value: unknown): string {
  if (value === null || value === undefined || value === '') return 'none'
  if (typeof value === 'boolean') return value ? 'yes' : 'no'
  return oneLine(typeof value === 'string' ? value : JSON.stringify(value), LONGEST)
}

/** `max_slots: none → 4`. Empty if the entry has no fields, or only a new object, whose fields are all new. */
export function changeText(before: unknown, after: unknown): string {
  if (!isValues(after)) return ''
  const old = isValues(before) ? before : null
  const changed = Object.keys({ ...old, ...after }).filter((name) => (old === null ? typeof after[name] !== 'object' : !same(old[name], after[name])))
  const parts = changed.slice(0, MOST).map((name) => (old === null ? `${name}: ${shown(after[name])}` : `${name}: ${shown(old[name])} → ${shown(after[name])}`))
  return changed.length > MOST ? `${parts.join(', ')} and ${changed.length - MOST} more` : parts.join(', ')
}
