import { expect, test } from 'vitest'
import { changeText } from '@/screens/access/changeText'

test('a change names the fields that differ, before and after', () => {
  expect(changeText({ name: 'media', max_slots: null, enabled: true }, { name: 'media', max_slots: 4, enabled: false })).toBe('max_slots: none → 4, enabled: yes → no')
})

test('a new object names its plain fields', () => {
  expect(changeText(null, { reason: 'Holidays', more: { a: 1 } })).toBe('reason: Holidays')
})

test('many changes are counted, and an entry without fields has no text', () => {
  const of = (value: number) => Object.fromEntries(['a', 'b', 'c', 'd', 'e', 'f'].map((name) => [name, value]))
  expect(changeText(of(1), of(2))).toBe('a: 1 → 2, b: 1 → 2, c: 1 → 2, d: 1 → 2 and 2 more')
  expect(changeText({ a: 1 }, null)).toBe('')
  expect(changeText(undefined, undefined)).toBe('')
})

test('text of others stays on its line and short', () => {
  expect(changeText({ reason: 'x' }, { reason: `${'long '.repeat(50)}\n` }).length).toBeLessThan(60)
})
