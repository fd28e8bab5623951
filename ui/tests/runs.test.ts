import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { withChanges } from '@/app/address'
import { readFrame } from '@/live/hints'
import { draftOf, fieldsOf, questionFields, readDraft } from '@/parts/form/schema'
import { everyBucket, type Point } from '@/screens/overview/buckets'
import { type BulkName, bulkRequest, type Selected } from '@/screens/runs/bulk'
import { csvCell } from '@/screens/runs/exportRows'
import { type RunFilters, readFilters, setFilters, toBulkFilter, toQuery, without, writeFilters } from '@/screens/runs/filters'

const word = fc.stringMatching(/^[a-z0-9:_ ./-]{0,12}$/)
const filters: fc.Arbitrary<RunFilters> = fc
  .record({
    status: fc.uniqueArray(fc.constantFrom('queued', 'running', 'failed')),
    target: word, lane: word, key: word, text: word, parent: word, schedule: word, worker: word, session: word, error: word,
    children: fc.constantFrom('', 'yes'), forks: fc.constantFrom('', 'run_1'), version: fc.constantFrom('', 'abc'), longer: fc.constantFrom('', '90s'), shorter: fc.constantFrom('', '2h'), mincost: fc.constantFrom('', '0.5'), maxcost: fc.constantFrom('', '10'),
    tag: fc.uniqueArray(fc.stringMatching(/^[a-z=0-9]{1,8}$/), { maxLength: 3 }),
    window: fc.constantFrom('15m', '24h', '7d', 'all'),
  })
  .map((found) => ({ ...found, from: '', before: '' }))

describe('filters', () => {
  test('the URL restores them', () => {
    fc.assert(fc.property(filters, (given) => {
      expect(readFilters(new URLSearchParams(withChanges('', writeFilters(given))))).toEqual(given)
    }))
  })
  test('exact bounds replace the window', () => {
    const found = readFilters(new URLSearchParams('from=2026-11-17T00:00:00Z'))
    expect(found.window).toBe('')
    expect(toQuery(found, 0).accepted_from).toBe('2026-11-17T00:00:00Z')
  })
  test('each set filter can be cleared alone', () => {
    fc.assert(fc.property(filters, (given) => {
      for (const entry of setFilters(given)) expect(setFilters(without(given, entry))).toHaveLength(setFilters(given).length - 1)
    }))
  })
  test('durations are seconds, costs are numbers, and what is neither is left to the server', () => {
    const found = toQuery(readFilters(new URLSearchParams('longer=2m&maxcost=0.5&shorter=long')), 0)
    expect([found.min_duration_seconds, found.max_cost_usd, found.max_duration_seconds]).toEqual([120, 0.5, 'long'])
  })
  test('a bulk job selects by every filter of the list, in one tenant', () => {
    const text = 'worker=wrk_1&parent=run_1&session=chat_1&error=timeout&forks=run_2&longer=2m&mincost=0.5&key=k&tag=a&window=all'
    expect(toBulkFilter(readFilters(new URLSearchParams(text)), 0, 'acme')).toMatchObject({
      tenant: 'acme', worker: 'wrk_1', parent: 'run_1', session: 'chat_1', error_code: 'timeout', forked_from: 'run_2',
      min_duration_seconds: 120, min_cost_usd: 0.5, ordering_key: 'k', tags: ['a'],
    })
  })
})

describe('child runs', () => {
  const roots = (text: string) => toQuery(readFilters(new URLSearchParams(text)), 0).roots
  test('are left out by default, and listed on request and with their parent', () => {
    expect([roots(''), roots('status=failed'), roots('children=yes'), roots('parent=run_1')]).toEqual([true, true, undefined, undefined])
  })
})

describe('bulk commands', () => {
  const options = { priority: 5, lane: 'media', add: ['a'], remove: [], latest: false }
  const cli = (action: BulkName, selected: Selected) => bulkRequest(action, selected, options).cli
  test('name the filter or the runs, and the options of the action', () => {
    expect(cli('cancel', { filter: { lane: 'web', status: ['queued'], tenant: undefined } })).toBe('runlane bulk start cancel --lane web --status queued')
    expect(cli('lane', { ids: ['run_1', 'run_2'], statuses: [] })).toBe('runlane bulk start lane --run run_1 --run run_2 --to media')
    expect(cli('tag', { filter: { roots: true, tags: ['x'] } })).toBe('runlane bulk start tag --roots --tag x --add a')
  })
  test('do not exist for filters that the program does not have', () => expect(cli('cancel', { filter: { tenant: 'acme', lane: 'web' } })).toBeUndefined())
})

describe('hints', () => {
  test('ids and topics', () => expect(readFrame('{"type":"hints","hints":[{"topic":"runs","ids":["run_1"]},{"topic":"all","ids":null}]}')).toEqual([{ topic: 'runs', ids: ['run_1'] }, { topic: '*', ids: undefined }]))
  test('after the first frame of a stream everything is read again', () => expect(readFrame('{"type":"hello","live":true,"hints":[]}')).toEqual([{ topic: '*' }]))
  test('a frame that cannot be read means everything', () => expect(readFrame('{')).toEqual([{ topic: '*' }]))
})

describe('forms', () => {
  const fields = fieldsOf({
    type: 'object',
    required: ['name', 'count'],
    properties: {
      name: { type: 'string' },
      count: { type: 'integer', minimum: 1 },
      mode: { enum: ['fit', 'fill'], default: 'fit' },
      loud: { type: 'boolean' },
      extra: { anyOf: [{ type: 'object' }, { type: 'null' }] },
    },
  })
  test('controls follow the types', () => expect(fields.map((field) => field.control)).toEqual(['text', 'integer', 'choice', 'boolean', 'json']))
  test('empty optional fields are left out', () => expect(readDraft(fields, { ...draftOf(fields), name: 'x', count: '3' }).values).toEqual({ name: 'x', count: 3, mode: 'fit' }))
  test('problems are named at their field', () => expect(Object.keys(readDraft(fields, { ...draftOf(fields), count: '0.5', extra: '{' }).problems)).toEqual(['name', 'count', 'extra']))
  test('questions become forms', () => expect(questionFields([{ name: 'decision', type: 'select', options: ['a'], required: true }])[0]).toMatchObject({ control: 'choice', required: true }))
})

describe('export', () => {
  test.each([['=1+1', `'=1+1`], ['-2', `'-2`], ['a,b', '"a,b"'], [null, ''], [-2, '-2'], [['x', 'y'], 'x y'], ['say "hi"', '"say ""hi"""']])('%s', (value, cell) =>
    expect(csvCell(value)).toBe(cell))
})

describe('the chart', () => {
  test('has a bar for each part of the window', () => {
    const point = { at: '2026-11-17T09:02:00Z', accepted: 3 } as Point
    const bars = everyBucket([point], Date.parse('2026-11-17T09:00:00Z'), Date.parse('2026-11-17T09:05:00Z'), 60)
    expect(bars.map((bar) => bar.accepted)).toEqual([0, 0, 3, 0, 0])
  })
})
