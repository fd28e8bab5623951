import { describe, expect, test } from 'vitest'
import { parseJson, parseNumber } from '@/api/json'
import { childPath, findPaths, rowsOf } from '@/parts/json/rows'
import { diffLines } from '@/parts/diff/lines'
import fc from 'fast-check'

describe('parsing', () => {
  test.each([['12', 12], [' .5 ', 0.5], ['-1e3', -1000]])('the typed number %s', (text, value) => expect(parseNumber(text)).toBe(value))
  test('ordinary values are plain', () => expect(parseJson('{"a":[1,2.5,"x",null,true]}')).toEqual({ a: [1, 2.5, 'x', null, true] }))
})

describe('the tree', () => {
  const shape = { toggled: new Set<string>(), openDepth: 2, more: new Map<string, number>(), sorted: false }
  test('only opened nodes have rows', () => {
    expect(rowsOf({ a: { b: { c: 1 } } }, shape).map((row) => row.path)).toEqual(['', 'a', 'a.b'])
    expect(rowsOf({ a: { b: { c: 1 } } }, { ...shape, toggled: new Set(['a.b']) }).map((row) => row.path)).toEqual(['', 'a', 'a.b', 'a.b.c'])
  })
  test('a long list is shown page by page', () => {
    const rows = rowsOf(Array.from({ length: 500 }, (_, index) => index), shape)
    expect(rows).toHaveLength(202)
    expect(rows.at(-1)?.hidden).toBe(300)
  })
  test('paths can be pasted into code', () => expect([childPath('', 'a'), childPath('a', 0), childPath('a', 'b c')]).toEqual(['a', 'a[0]', 'a["b c"]']))
  test('search finds keys and values', () => expect(findPaths({ tone: 'dry', list: ['dry ice'] }, 'dry').paths).toEqual(['tone', 'list[0]']))
})

describe('the diff', () => {
  test('equal strings have no change', () => expect(diffLines('a\nb', 'a\nb').every((line) => line.kind === 'same')).toBe(true))
  test('it turns the first text into the second', () => {
    const text = fc.array(fc.constantFrom('a', 'b', 'c', 'd'), { maxLength: 30 }).map((lines) => lines.join('\n'))
    fc.assert(fc.property(text, text, (before, after) => {
      const lines = diffLines(before, after)
      const side = (kind: string) => lines.filter((line) => line.kind === 'same' || line.kind === kind).map((line) => line.text).join('\n')
      expect(side('removed')).toBe(before)
      expect(side('added')).toBe(after)
    }))
  })
})
