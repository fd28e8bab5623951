import { describe, expect, it } from 'vitest'
import type { Lane, Question } from '../src/api/types'
import { pathOfId } from '../src/app/palette/commands'
import { changeTenantAction, type Tenant } from '../src/screens/access/accessActions'
import { turnsOf } from '../src/screens/chat/turns'
import { stepIds, vocabularyOf } from '../src/screens/definitions/editor/complete'
import { describeField } from '../src/screens/definitions/editor/describe'
import { findStep, locate, pathAt, stepAt } from '../src/screens/definitions/editor/locate'
import { letterConsequence, letterRequest, NO_OPTIONS } from '../src/screens/deadLetters/letterBulk'
import { firstDraft, formOf, readAnswer } from '../src/screens/inbox/answerDraft'
import { amountOf, capOf, raiseConsequence, raisedCap } from '../src/screens/inbox/budget'
import { childPath, keysOf } from '../src/parts/json/rows'
import { arrange } from '../src/screens/run/graph/arrange'
import { openNodes, outerGraph, pathOf, type RunGraph, withInner } from '../src/screens/run/graph/nested'
import { boundsOf, partOf, zoomText } from '../src/screens/run/timeline/part'
import { makeScale } from '../src/screens/run/timeline/scale'
import { firstTab } from '../src/screens/run/firstTab'
import { slowStatements } from '../src/screens/system/slow'
import { verdictOf } from '../src/screens/lanes/verdict'
import { cliOf, emptyDraft, readSchedule } from '../src/screens/schedules/scheduleForm'
import { NO_OPTIONS as NO_START, startRequest } from '../src/screens/start/startRequest'

describe('pasted ids', () => {
  it.each([
    ['run_0192f3a1b2c37abc8def0123456789ab', '/runs/run_0192f3a1b2c37abc8def0123456789ab'],
    [' wrk_0192f3a1b2c37abc8def0123456789ab ', '/workers?worker=wrk_0192f3a1b2c37abc8def0123456789ab'],
    ['sess_0192f3a1b2c37abc8def0123456789ab', '/chat/sess_0192f3a1b2c37abc8def0123456789ab'],
    ['blk_0192f3a1b2c37abc8def0123456789ab', '/bulk/blk_0192f3a1b2c37abc8def0123456789ab'],
    ['running', undefined],
  ])('%s leads to %s', (text, path) => expect(pathOfId(text)?.path).toBe(path))
})

const TEXT = `{
  "id": "x", "note": "a \\"{brace}\\"",
  "steps": [
    {"id": "a", "type": "print", "next_step_id": "b"},
    {"id": "b", "type": "print"}
  ]
}`

describe('places in a definition', () => {
  it('finds the key that a pointer names', () => {
    const place = locate(TEXT, '/steps/0/next_step_id')
    expect(TEXT.slice(place.from, place.to)).toBe('"next_step_id"')
  })
  it('falls back to the deepest part that exists', () => {
    const place = locate(TEXT, '/steps/1/print_content')
    expect(TEXT.slice(place.from, place.from + 11)).toBe('{"id": "b",')
    expect(locate(TEXT, '')).toEqual({ from: 0, to: 1 })
  })
  it('connects steps and the cursor', () => {
    expect(stepAt(TEXT, TEXT.indexOf('"b", "type"'))).toBe('b')
    expect(findStep(TEXT, 'b')!.from).toBeGreaterThan(findStep(TEXT, 'a')!.from)
    expect(findStep(TEXT, 'c')).toBeNull()
    expect(stepAt('{', 0)).toBeNull()
  })
  it('collects what the schema allows', () => {
    const words = vocabularyOf({ $defs: { Step: { properties: { type: { enum: ['print', 'llm'] }, id: { description: 'Its id.' } } } } }, ['helper'])
    expect(words.keys.get('id')).toBe('Its id.')
    expect([...words.values.get('type')!]).toEqual(['print', 'llm'])
    expect(stepIds(TEXT)).toEqual(['x', 'a', 'b'])
  })
})

describe('answers', () => {
  const question = {
    run_id: 'run_1', path: 'p', about: 'approval',
    context: { tool_name: 'mail', arguments: { to: 'ann' } },
    fields: [
      { name: 'decision', type: 'select', options: ['approve', 'edit', 'deny'], required: true },
      { name: 'arguments', type: 'textarea' },
      { name: 'reason', type: 'text' },
    ],
  } as unknown as Question
  it('sends arguments only when they are edited', () => {
    const form = formOf(question)
    const draft = firstDraft(question, form)
    expect(readAnswer(form, { ...draft, decision: 'approve' }).response).toEqual({ decision: 'approve' })
    expect(readAnswer(form, { ...draft, decision: 'edit' }).response).toEqual({ decision: 'edit', arguments: { to: 'ann' } })
    expect(readAnswer(form, { ...draft, decision: 'edit', arguments: '{' }).problems).toHaveProperty('arguments')
    expect(readAnswer(form, { ...draft, decision: 'deny', reason: 'no' }).response).toEqual({ decision: 'deny', reason: 'no' })
  })
  it('takes one text for a question without fields', () => {
    const form = formOf({ ...question, fields: [] })
    expect(readAnswer(form, { answer: 'yes' }).response).toBe('yes')
  })
})

describe('requests', () => {
  it('starts a run with its options, as a request and as a command', () => {
    const sent = startRequest('orchestration:report', "it's", {}, { ...NO_START, priority: '5', tags: 'a b=1', hold: true })
    expect(sent.path).toBe('/api/v2/orchestrations/report/run')
    expect(sent.body).toEqual({ message: "it's", priority: 5, hold: true, tags: ['a', 'b=1'] })
    expect(sent.cli).toBe(`runlane run orchestration:report --message 'it'\\''s' --priority 5 --hold --tag a --tag b=1`)
    expect(startRequest('resize', null, {}, NO_START).body).toEqual({ input: {} })
  })
  it('replays a group of failures', () => {
    const sent = letterRequest('retry', { filter: { fingerprint: 'f' } }, { ...NO_OPTIONS, kind: 'restart' }, true)
    expect(sent.body).toMatchObject({ action: 'retry', dry_run: true, filter: { fingerprint: 'f' }, options: { kind: 'restart' } })
    expect(sent.cli).toBe('runlane dead-letters retry --fingerprint f --kind restart')
    expect(letterConsequence('retry', 1, NO_OPTIONS)).toContain('1 run will be queued again')
  })
  it('shows a command for dead letters only if it selects the same ones', () => {
    const filter = { state: ['open' as const, 'acknowledged' as const], code: 'timeout', assigned_to: 'ann' }
    expect(letterRequest('retry', { filter }, { ...NO_OPTIONS, rate: '5' }).cli).toBe('runlane dead-letters retry --code timeout --assigned-to ann --rate 5')
    expect(letterRequest('retry', { filter: { state: ['retrying'] } }, NO_OPTIONS).cli).toBe('runlane dead-letters retry --state retrying')
    expect(letterRequest('discard', { filter }, NO_OPTIONS).cli).toBeUndefined()
    expect(letterRequest('assign', { filter }, NO_OPTIONS).cli).toBeUndefined()
    expect(letterRequest('retry', { filter: { tenant: 'acme' } }, NO_OPTIONS).cli).toBeUndefined()
  })
  it('shows every change of a tenant in its command', () => {
    const tenant = { id: 'acme', enabled: true, on_cap: 'fail', weight: 1, max_queued: 5, max_running: null, rate_per_second: null, max_cost_usd_per_day: null, max_schedules: null, min_schedule_seconds: null } as unknown as Tenant
    const { request } = changeTenantAction(tenant, { enabled: true, on_cap: 'ask', weight: 2, max_running: 7 })
    expect(request.cli).toBe('runlane tenants set acme --max-running 7 --no-limit max_queued --on-cap ask --weight 2')
  })
  it('reads a schedule, or names what is missing', () => {
    const draft = { ...emptyDraft(), id: 'nightly', name: 'resize', zone: 'UTC' }
    expect(readSchedule({ ...draft, id: ' ' }).problem).toBe('An id is required.')
    expect(readSchedule({ ...draft, input: '[1]' }).problem).toBe('The input must be a JSON object.')
    expect(readSchedule({ ...draft, times: 'every', every: '0' }).problem).toBe('The times are not complete.')
    const { body } = readSchedule(draft)
    expect(body).toMatchObject({ id: 'nightly', target: { kind: 'task', name: 'resize' }, spec: [{ cron: '0 7 * * *' }] })
    expect(cliOf(body!)).toContain(`runlane schedules create nightly --task resize --cron '0 7 * * *'`)
    expect(cliOf({ ...body!, catch_up: 'latest' })).toContain(`--settings '{"catch_up":"latest"}'`)
  })
})

describe('verdicts and turns', () => {
  const lane = { name: 'media', enabled: true, held: false, max_slots: 2, running: 2, queued: 3 } as Lane
  const worker = { status: 'online', lanes: ['*'], active_jobs: 2, max_jobs: 50 }
  it('says why runs wait', () => {
    expect(verdictOf(lane, [worker]).text).toBe('3 runs wait: all 2 slots are in use.')
    expect(verdictOf({ ...lane, enabled: false }, [worker]).text).toBe('3 runs wait: the lane is disabled.')
    expect(verdictOf(lane, [{ ...worker, lanes: ['other'] }]).text).toBe('3 runs wait: no worker serves this lane.')
    expect(verdictOf({ ...lane, max_slots: null }, [{ ...worker, active_jobs: 50 }]).text).toBe('3 runs wait: every worker is full.')
  })
  it('orders turns as they were accepted', () => {
    const message = (turn: number, role: string) => ({ turn, role, run_id: `run_${turn}`, status: 'completed' })
    const turns = turnsOf([message(2, 'user'), message(1, 'assistant'), message(1, 'user')] as never)
    expect(turns.map(({ turn }) => turn)).toEqual([1, 2])
    expect(turns[0]!.answer).not.toBeNull()
  })
})

describe('the view with which a run opens', () => {
  it('explains a failed task by its attempts, and an ended one by its result', () => {
    expect(firstTab({ target: 'charge', status: 'failed' })).toBe('attempts')
    expect(firstTab({ target: 'graph:helper', status: 'failed' })).toBe('attempts')
    expect(firstTab({ target: 'charge', status: 'completed' })).toBe('io')
    expect(firstTab({ target: 'charge', status: 'running' })).toBe('timeline')
    expect(firstTab({ target: 'charge', status: 'blocked' })).toBe('io')
  })
  it('is the timeline where there are steps', () => {
    for (const status of ['failed', 'completed', 'paused']) {
      expect(firstTab({ target: 'orchestration:report', status })).toBe('timeline')
      expect(firstTab({ target: 'agent:helper', status })).toBe('timeline')
    }
  })
})

describe('slow statements', () => {
  it('of every server are listed together, and servers of earlier versions have none', () => {
    const one = { name: 'list_a', seconds: 0.2, count: 3, at: '2026-11-18T00:00:00Z' }
    const servers = [{ id: 'srv_1', figures: {} }, { id: 'srv_2', figures: { slow_statements: [one] } }, { id: 'srv_3', figures: { slow_statements: [{ ...one, seconds: 2 }] } }]
    expect(slowStatements(servers).map(({ server, seconds }) => [server, seconds])).toEqual([['srv_3', 2], ['srv_2', 0.2]])
  })
})

describe('the meaning of a field', () => {
  const schema = {
    oneOf: [{ $ref: '#/$defs/Orchestration' }, { type: 'array', items: { $ref: '#/$defs/Orchestration' } }],
    $defs: {
      Orchestration: {
        properties: {
          on_cap: { description: 'When the cap is reached.', enum: ['fail', 'ask'], default: 'fail' },
          steps: { description: 'The steps.', items: { oneOf: [{ $ref: '#/$defs/Print' }, { $ref: '#/$defs/Wait' }] } },
          labels: { additionalProperties: { description: 'One label.', type: 'string' } },
        },
      },
      Print: { description: 'Emit text.', properties: { type: { const: 'print' }, content: { description: 'The text.', type: 'string' } } },
      Wait: { description: 'Wait for a time.', properties: { type: { const: 'wait' }, content: { description: 'Seconds.', minimum: 1, type: 'number' } } },
    },
  }
  const definition = { on_cap: 'ask', steps: [{ type: 'wait', content: 3 }, { type: 'print', content: 'x' }], labels: { 'a b': 'c' } }
  it('is that of the kind of step', () => {
    expect(describeField(schema, definition, ['steps', 0, 'content'])).toEqual({ place: 'steps[0].content', about: 'Seconds.', facts: 'number; at least 1' })
    expect(describeField(schema, definition, ['steps', 1, 'content'])?.about).toBe('The text.')
    expect(describeField(schema, definition, ['steps', 1, 'type'])?.about).toBe('Emit text.')
  })
  it('names the allowed values and the default', () => {
    expect(describeField(schema, definition, ['on_cap'])?.facts).toBe('fail, ask; default "fail"')
    expect(describeField(schema, definition, ['labels', 'a b'])?.about).toBe('One label.')
  })
  it('is empty for what the schema does not know', () => {
    expect(describeField(schema, definition, ['other'])).toBeNull()
    expect(describeField(undefined, definition, ['on_cap'])).toBeNull()
    expect(describeField(schema, definition, [])).toBeNull()
  })
  it('is found by the place of the cursor', () => {
    expect(pathAt(TEXT, TEXT.indexOf('"b"}'))).toEqual(['steps', 0, 'next_step_id'])
    expect(pathAt(TEXT, TEXT.indexOf('"type"'))).toEqual(['steps', 0, 'type'])
    expect(pathAt(TEXT, TEXT.indexOf(', "note"') + 1)).toEqual(['id'])
    expect(pathAt(TEXT, 0)).toEqual([])
    expect(pathAt('{"a": ', 3)).toBeNull()
  })
  it('is found by the path of a row', () => {
    const path = childPath(childPath(childPath('', 'steps'), 3), 'a "b".c')
    expect(keysOf(path)).toEqual(['steps', 3, 'a "b".c'])
  })
})

describe('a reached cap', () => {
  const question = { about: 'budget', context: { scope: 'run', limit_usd: 0.02, spent_usd: 0.025 } } as unknown as Question
  it('is raised on top of what was spent', () => {
    const cap = capOf(question)!
    expect(raisedCap(cap, 0.02)).toBeCloseTo(0.045)
    expect(raiseConsequence(cap, 0.02)).toBe('The run may spend $0.020 more, up to $0.045. Other runs keep the cap.')
    expect(raiseConsequence({ ...cap, scope: 'tenant' }, 1)).toContain('today')
  })
  it('takes amounts above zero alone', () => {
    expect([' 0.5 ', '$2', '0', '-1', '', 'x', 'Infinity'].map(amountOf)).toEqual([0.5, 2, null, null, null, null, null])
    expect(capOf({ ...question, about: 'step' } as Question)).toBeNull()
  })
})

describe('the visible part of a timeline', () => {
  const scale = makeScale({ start: 1_000, end: 3_601_000 }, [{ start: 1_000, end: 6_000 }, { start: 3_596_000, end: 3_601_000 }], true)
  it('is the same part after it was written into the address', () => {
    const part = partOf(boundsOf('2000..3597000'), scale, 1_000)!
    expect(zoomText(part, scale, 1_000)).toBe('2000..3597000')
  })
  it('is left out for the whole line and for what is not a part', () => {
    expect(zoomText({ from: 0, to: 1 }, scale, 1_000)).toBeNull()
    expect([null, '', '5..5', '9..2', 'a..b', '1..', '1e9..2e9'].map(boundsOf)).toEqual([null, null, null, null, null, null, null])
    expect(partOf(boundsOf('9000000..9000001'), scale, 1_000)).toBeNull()
  })
})

describe('inner orchestrations in a graph', () => {
  const outer = outerGraph({
    run_id: 'run_1', path: '', taken: [0], steps: { sub: { last_path: 'rounds/2/sub' } },
    graph: { orchestration_id: 'o', version: '1', nodes: [{ id: 'sub', container: null, type: 'orchestration' }], edges: [{ source: 'sub', target: null, kind: 'next', label: '', back: false }] },
  } as unknown as RunGraph)
  const inner = {
    run_id: 'run_1', path: 'rounds/2/sub', taken: [0], steps: { a: { last_path: 'rounds/2/sub/>a' } },
    graph: { orchestration_id: 'i', version: '1', nodes: [{ id: 'a', container: null }, { id: 'b', container: 'a' }], edges: [{ source: 'a', target: null, kind: 'next', label: '', back: false }] },
  } as unknown as RunGraph
  it('lie inside the step that runs them, each with its own end', () => {
    const merged = withInner(outer, 'sub', inner)
    expect(merged.nodes.map((node) => [node.id, node.container])).toEqual([['sub', null], ['sub/>a', 'sub'], ['sub/>b', 'sub/>a']])
    expect(merged.edges[1]).toMatchObject({ source: 'sub/>a', target: 'sub/>$end' })
    expect(merged.taken).toEqual([0, 1])
    const places = new Map(arrange(merged.nodes, merged.edges).places.map((place) => [place.id, place.parent]))
    expect(places.get('sub/>$end')).toBe('sub')
    expect(places.get('$end')).toBeNull()
  })
  it('are read by the path of the latest execution', () => {
    expect(pathOf(outer, 'sub', '')).toBe('rounds/2/sub')
    expect(pathOf({ ...outer, steps: {} }, 'sub', 'x')).toBe('x/>sub')
  })
  it('are opened from the outside in, to the second level', () => {
    expect(openNodes(['a/>b', 'a', 'c/>d', 'a/>b/>c'])).toEqual(['a', 'a/>b'])
  })
})
