import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { applyEvents } from '@/screens/run/model/reduce'
import { addPiece } from '@/screens/run/model/liveText'
import { partsOf, stepIdOf } from '@/screens/run/model/paths'
import { emptyModel, type RunEvent, type RunModel } from '@/screens/run/model/types'
import { timelineRows } from '@/screens/run/timeline/rows'
import { makeScale } from '@/screens/run/timeline/scale'
import { liftEdges } from '@/screens/run/graph/arrange'
import { stateHistory } from '@/screens/run/state/history'

const BASE = Date.parse('2026-11-17T09:00:00Z')

function events(...given: [type: string, fields?: Record<string, unknown>][]): RunEvent[] {
  return given.map(([type, fields = {}], index) => ({ type, run_id: 'run_1', attempt: 1, seq: index + 1, at: new Date(BASE + index * 1000).toISOString(), ...fields }))
}

const RUN = events(
  ['queued'], ['worker_picked_up', { worker_id: 'wrk_a' }],
  ['step_start', { path: 'plan', step_type: 'llm', step_name: 'plan' }],
  ['model_request', { path: 'plan', turn: 1 }],
  ['model_response', { path: 'plan', turn: 1, answer: '0/model/0', text: 'one', model: 'm', cost_usd: 0.5, tokens_in: 3, tokens_out: 4, tool_calls: [{ id: 'c1', name: 'look', arguments: { a: 1 } }] }],
  ['tool_execution', { path: 'plan', call_id: 'c1', tool_name: 'look', args: { a: 1 } }],
  ['worker_lost', { worker_id: 'wrk_a' }],
  ['worker_picked_up', { worker_id: 'wrk_b', attempt: 2 }],
  ['step_start', { path: 'plan', step_type: 'llm', step_name: 'plan', attempt: 2 }],
  ['tool_execution', { path: 'plan', call_id: 'c1', tool_name: 'look', args: { a: 1 }, attempt: 2 }],
  ['tool_result', { path: 'plan', call_id: 'c1', tool_name: 'look', preview: 'found', attempt: 2 }],
  ['step_complete', { path: 'plan', duration_seconds: 2, cost_usd: 0.5, attempt: 2 }],
  ['parallel_start', { path: 'split', orch_step_id: 'split', attempt: 2 }],
  ['step_start', { path: 'split/0/a', step_type: 'print', step_name: 'a', attempt: 2 }],
  ['step_start', { path: 'split/1/b', step_type: 'print', step_name: 'b', attempt: 2 }],
  ['step_complete', { path: 'split/0/a', attempt: 2 }],
  ['step_error', { path: 'split/1/b', error: 'broke', code: 'x', attempt: 2 }],
  ['parallel_complete', { path: 'split', attempt: 2 }],
  ['something_new', { whatever: 1, attempt: 2 }],
  ['done', { status: 'failed', attempt: 2 }],
)

const plain = (model: RunModel) => JSON.stringify({ ...model, spans: [...model.spans], conversations: [...model.conversations], steps: [...model.steps], taken: [...model.taken], live: [...model.live] })

describe('the model', () => {
  test('any split of the events, with repeats, gives the same model', () => {
    const whole = emptyModel()
    applyEvents(whole, RUN)
    fc.assert(fc.property(fc.array(fc.integer({ min: 0, max: RUN.length }), { maxLength: 6 }), fc.array(fc.integer({ min: 0, max: 4 }), { minLength: 7, maxLength: 7 }), (cuts, overlaps) => {
      const model = emptyModel()
      const ends = [...new Set([...cuts, RUN.length])].sort((a, b) => a - b)
      let start = 0
      ends.forEach((end, index) => {
        applyEvents(model, RUN.slice(Math.max(0, start - (overlaps[index] ?? 0)), end))
        start = end
      })
      expect(plain(model)).toBe(plain(whole))
    }))
  })

  test('a takeover ends what was open and continues the same spans', () => {
    const model = emptyModel()
    applyEvents(model, RUN.slice(0, 7))
    expect(model.spans.get('plan')?.outcome).toBe('lost')
    applyEvents(model, RUN)
    expect(model.attempts.map((band) => band.outcome)).toEqual(['lost', 'failed'])
    expect(model.spans.get('plan')?.outcome).toBe('done')
    expect(model.spans.get('plan#call/c1')?.outcome).toBe('done')
    expect(model.conversations.get('plan')?.items).toHaveLength(1)
  })

  test('branches belong to their step', () => {
    const model = emptyModel()
    applyEvents(model, RUN)
    expect(model.roots).toEqual(['plan', 'split'])
    expect(model.spans.get('split')?.children).toEqual(['split/0', 'split/1'])
    expect(model.spans.get('split/1')?.outcome).toBe('failed')
  })

  test('no event is applied before its predecessor', () => {
    const model = emptyModel()
    applyEvents(model, RUN.slice(3))
    expect(model.last).toBe(0)
  })

  test('live text is void after a takeover and replaced by the stored answer', () => {
    const model = emptyModel()
    applyEvents(model, RUN.slice(0, 4))
    const piece = { type: 'text', run_id: 'run_1', attempt: 1, path: 'plan', answer: '0/model/0' }
    applyEvents(model, [{ ...piece, offset: 0, text: 'on' }, { ...piece, offset: 2, text: 'e' }, { ...piece, attempt: 0, offset: 0, text: 'old' }])
    expect([...model.live.values()][0]?.text).toBe('one')
    applyEvents(model, RUN.slice(4, 5))
    expect(model.live.size).toBe(0)
  })

  test('many rounds are one row until they are unfolded', () => {
    const model = emptyModel()
    const rounds = Array.from({ length: 60 }, (_, round): [string, Record<string, unknown>][] => [
      ['step_start', { path: `loop/${round + 1}/x`, step_type: 'print', step_name: 'x' }],
      ['step_complete', { path: `loop/${round + 1}/x` }],
    ]).flat()
    applyEvents(model, events(['loop_iteration', { path: 'loop', orch_step_id: 'loop' }], ...rounds))
    const folding = { toggled: new Set<string>(), more: new Map<string, number>(), hideDone: false }
    const [row, ...rest] = timelineRows(model, folding)
    expect(rest).toHaveLength(0)
    expect(row?.kind === 'span' && row.summary).toEqual({ done: 60 })
    const open = timelineRows(model, { ...folding, toggled: new Set(['loop']) })
    expect(open.at(-1)).toMatchObject({ kind: 'more', hidden: 10 })
  })
})

describe('live pieces', () => {
  test('offsets count characters and not UTF-16 units', () => expect(addPiece('😀a', 2, 'b')).toBe('😀ab'))
  test('a piece beyond the text waits', () => expect(addPiece('a', 5, 'b')).toBeNull())
})

describe('paths', () => {
  test('places of a step', () => expect(partsOf('split/0/sub/>draft~2').map((part) => part.id)).toEqual(['split', 'split/0', 'split/0/sub', 'split/0/sub/>draft~2']))
  test.each([['split/0/draft~2', 'draft'], ['sub/>look', 'look'], ['answer!0/approve/0/c', 'answer']])('%s is %s', (path, id) => expect(stepIdOf(path)).toBe(id))
})

describe('the time line', () => {
  const interval = fc.tuple(fc.integer({ min: 0, max: 1_000_000 }), fc.integer({ min: 0, max: 50_000 })).map(([start, length]) => ({ start, end: start + length }))
  test('is monotone, within bounds, and its inverse', () => {
    fc.assert(fc.property(fc.array(interval, { maxLength: 12 }), fc.boolean(), fc.array(fc.integer({ min: 0, max: 1_100_000 }), { minLength: 2, maxLength: 20 }), (busy, collapse, times) => {
      const scale = makeScale({ start: 0, end: 1_100_000 }, busy, collapse)
      const xs = times.sort((a, b) => a - b).map(scale.x)
      xs.forEach((x, index) => {
        expect(x).toBeGreaterThanOrEqual(-1e-9)
        expect(x).toBeLessThanOrEqual(1 + 1e-9)
        if (index > 0) expect(x).toBeGreaterThanOrEqual(xs[index - 1]! - 1e-9)
      })
      for (const time of times) expect(Math.abs(scale.time(scale.x(time)) - time)).toBeLessThan(2)
      scale.segments.forEach((segment, index) => {
        if (index > 0) expect(segment.from).toBe(scale.segments[index - 1]!.to)
      })
    }))
  })
  test('a long pause takes a small part of the width', () => {
    const scale = makeScale({ start: 0, end: 3_600_000 }, [{ start: 0, end: 5_000 }, { start: 3_595_000, end: 3_600_000 }], true)
    const idle = scale.segments.find((segment) => segment.idle)!
    expect(idle.x1 - idle.x0).toBeLessThan(0.05)
  })
})

describe('the graph', () => {
  test('edges of contained steps are drawn between their boxes', () => {
    const nodes = [{ id: 'plan', container: null }, { id: 'split', container: null }, { id: 'a', container: 'split' }, { id: 'b', container: 'split' }, { id: 'join', container: null }]
    const edge = (source: string, target: string | null, kind = 'next') => ({ source, target, kind, label: '', back: false })
    const lines = liftEdges(nodes, [edge('plan', 'split'), edge('split', 'a', 'branch'), edge('split', 'b', 'branch'), edge('a', 'join'), edge('b', 'join'), edge('join', null)])
    expect(lines.map((line) => `${line.source}>${line.target}`)).toEqual(['plan>split', 'split>join', 'join>$end'])
    expect(lines[1]?.edges).toEqual([3, 4])
  })
})

describe('the state', () => {
  test('each step shows what it wrote', () => {
    const step = (path: string, step_id: string, output: unknown) => ({ path, step_id, output, kind: 'llm', outcome: 'done', ended_at: '' }) as never
    const entries = stateHistory({ user_input: 'x' }, [step('a', 'a', 1), step('b', 'b', { c: 2 }), step('a~2', 'a', 3), step('sub/>a', 'a', 9)], [{ id: 'a', output_key: 'n' }, { id: 'b' }])
    expect(entries.map((entry) => entry.changes.map((change) => [change.key, change.before, change.after]))).toEqual([[['n', undefined, 1]], [], [['n', 1, 3]], []])
    expect(entries.at(-1)?.state).toEqual({ user_input: 'x', n: 3 })
  })
})
