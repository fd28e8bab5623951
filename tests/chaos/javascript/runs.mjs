/* Runs: created, waited for, streamed, joined, cancelled, resumed, and read through a broken connection. */
import assert from 'node:assert/strict'

import { FINAL, INPUT, collect, eventually, refused, started } from './expect.mjs'

const named = (parts, event) => parts.filter((part) => part.event === event).map((part) => part.data)
const open = async (client) => (await client.threads.create()).thread_id

export const runChecks = {
  async 'a run is created, joined, listed and deleted'(client) {
    const thread = await open(client)
    const seen = []
    const metadata = { from: 'javascript' }
    const run = await client.runs.create(thread, 'three', { input: INPUT, metadata, onRunCreated: (made) => seen.push(made) })
    assert.deepEqual(seen, [{ run_id: run.run_id, thread_id: thread }])
    assert.deepEqual(await client.runs.join(thread, run.run_id), FINAL)
    const ended = await client.runs.get(thread, run.run_id)
    assert.deepEqual([ended.status, ended.metadata.from], ['success', 'javascript'])
    assert.equal((await client.runs.list(thread, { status: 'success' })).length, 1)
    assert.deepEqual(await client.runs.list(thread, { select: ['run_id'] }), [{ run_id: run.run_id }])
    await client.runs.delete(thread, run.run_id)
    await refused(404, client.runs.get(thread, run.run_id))
  },

  async 'a run is streamed in several modes'(client) {
    const thread = await open(client)
    const seen = []
    const streamMode = ['values', 'updates', 'custom', 'tasks', 'debug', 'checkpoints']
    const options = { input: INPUT, streamMode, streamSubgraphs: true, streamResumable: true, durability: 'sync' }
    const parts = await collect(client.runs.stream(thread, 'three', { ...options, onRunCreated: (made) => seen.push(made) }))
    assert.equal(parts[0].event, 'metadata')
    assert.deepEqual(parts[0].data, { run_id: seen[0].run_id, attempt: 1 })
    assert.deepEqual(named(parts, 'values').at(-1), FINAL)
    assert.deepEqual(named(parts, 'updates').map((data) => Object.keys(data)[0]), ['a', 'b', 'c'])
    assert.deepEqual(named(parts, 'custom'), [{ note: 'from b' }])
    for (const mode of ['tasks', 'debug', 'checkpoints']) assert.ok(named(parts, mode).length > 0, mode)
    assert.equal(parts.at(-1).event, 'end')
    const modes = ['updates', 'custom']
    const again = await collect(client.runs.joinStream(thread, seen[0].run_id, { streamMode: modes, lastEventId: '-1' }))
    assert.deepEqual(named(again, 'updates'), named(parts, 'updates'))
    assert.equal(named(again, 'values').length, 0)
    const position = parts.findIndex((part) => part.event === 'custom')
    const rest = await collect(client.runs.joinStream(thread, seen[0].run_id, { lastEventId: parts[position].id }))
    const ids = (found) => found.filter((part) => part.event !== 'end').map((part) => [part.id, part.event])
    assert.deepEqual(ids(rest), ids(parts.slice(position + 1)))
    const bare = await collect(client.runs.joinStream(null, seen[0].run_id, { streamMode: 'custom', lastEventId: '-1' }))
    assert.deepEqual(named(bare, 'custom'), [{ note: 'from b' }])
  },

  async 'messages are streamed as tokens'(client) {
    const input = { messages: [{ role: 'user', content: 'hi' }] }
    const tuples = await collect(client.runs.stream(await open(client), 'chat', { input, streamMode: 'messages-tuple' }))
    const text = named(tuples, 'messages').map(([chunk]) => chunk.content)
    assert.ok(text.length > 2)
    assert.equal(text.join(''), 'hello there friend')
    const messages = await collect(client.runs.stream(await open(client), 'chat', { input, streamMode: 'messages' }))
    assert.equal(named(messages, 'messages/partial').at(-1)[0].content, 'hello there friend')
  },

  async 'a thread is joined by its stream'(client) {
    const thread = await open(client)
    await client.runs.wait(thread, 'three', { input: INPUT })
    const closing = new AbortController()
    const found = []
    const options = { signal: closing.signal, lastEventId: '-', streamMode: ['run_modes'] }
    for await (const part of client.threads.joinStream(thread, options)) {
      found.push(part)
      if (part.event === 'values' && part.data.value === FINAL.value) break
    }
    closing.abort()
    assert.equal(found.at(-1).data.value, FINAL.value)
  },

  async 'runs without a thread, alone and in a batch'(client) {
    assert.deepEqual(await client.runs.wait(null, 'three', { input: INPUT }), FINAL)
    const parts = await collect(client.runs.stream(null, 'three', { input: INPUT }))
    assert.deepEqual(named(parts, 'values').at(-1), FINAL)
    const batch = [{ assistantId: 'three', input: INPUT }, { assistantId: 'three', input: INPUT, streamMode: ['updates'] }]
    const made = await client.runs.createBatch(batch)
    assert.deepEqual(made[1].kwargs.stream_mode, ['updates'])
    for (const run of made) assert.deepEqual(await client.runs.join(run.thread_id, run.run_id), FINAL)
  },

  async 'a failure is an error for every reader'(client) {
    const thread = await open(client)
    await assert.rejects(client.runs.wait(thread, 'failing', { input: INPUT }), /ValueError: boom on purpose/)
    const kept = await client.runs.wait(thread, 'failing', { input: INPUT, raiseError: false })
    assert.equal(kept.__error__.message, 'boom on purpose')
    const parts = await collect(client.runs.stream(thread, 'failing', { input: INPUT }))
    assert.deepEqual(named(parts, 'error'), [{ error: 'ValueError', message: 'boom on purpose' }])
    assert.equal((await client.threads.get(thread)).status, 'error')
    await refused(404, client.runs.create(thread, 'nope', { input: INPUT }))
    await refused(404, client.runs.create(crypto.randomUUID(), 'three', { input: INPUT }))
    assert.deepEqual(await client.runs.wait(crypto.randomUUID(), 'three', { input: INPUT, ifNotExists: 'create' }), FINAL)
  },

  async 'a run is cancelled: kept or rolled back'(client) {
    const thread = await open(client)
    const kept = await started(client, thread, 'sleepy', { input: INPUT })
    await client.runs.cancel(thread, kept.run_id, true)
    assert.equal((await client.runs.get(thread, kept.run_id)).status, 'interrupted')
    const gone = await started(client, thread, 'sleepy', { input: INPUT })
    await client.runs.cancel(thread, gone.run_id, false, 'rollback')
    await eventually(async () => (await client.threads.get(thread)).status !== 'busy', 'the rollback')
    await refused(404, client.runs.get(thread, gone.run_id))
    if (client.runs.cancelMany !== undefined) {
      const late = await client.runs.create(thread, 'three', { input: INPUT, afterSeconds: 3600 })
      await client.runs.cancelMany({ threadId: thread, runIds: [late.run_id], action: 'interrupt' })
      assert.equal((await client.runs.get(thread, late.run_id)).status, 'interrupted')
    }
  },

  async 'the four multitask strategies'(client) {
    for (const multitaskStrategy of ['reject', 'enqueue', 'interrupt', 'rollback']) {
      const thread = await open(client)
      const first = await started(client, thread, 'sleepy', { input: INPUT })
      const starting = client.runs.create(thread, 'three', { input: { value: 101, items: [] }, multitaskStrategy })
      if (multitaskStrategy === 'reject') {
        await refused(409, starting)
        await client.runs.cancel(thread, first.run_id, true)
        continue
      }
      const second = await starting
      if (multitaskStrategy === 'enqueue') {
        assert.equal((await client.runs.get(thread, second.run_id)).status, 'pending')
        await client.runs.cancel(thread, first.run_id, true)
      }
      assert.equal((await client.runs.join(thread, second.run_id)).items.at(-1), 'c')
      const left = (await client.runs.list(thread)).map((run) => run.status).sort()
      assert.deepEqual(left, multitaskStrategy === 'rollback' ? ['success'] : ['interrupted', 'success'])
    }
  },

  async 'a person answers with a command'(client) {
    const thread = await open(client)
    const asked = await client.runs.wait(thread, 'human', { input: INPUT })
    const [question] = asked.__interrupt__
    assert.deepEqual(question.value, { question: 'ok?', value: 2 })
    const waiting = await client.threads.get(thread)
    assert.equal(waiting.status, 'interrupted')
    assert.equal(Object.values(waiting.interrupts)[0][0].id, question.id)
    await refused(422, client.runs.create(thread, 'human', { command: { resume: { ['0'.repeat(32)]: 'yes' } } }))
    const parts = await collect(client.runs.stream(thread, 'human', { command: { resume: { [question.id]: 'yes' } } }))
    assert.deepEqual(named(parts, 'values').at(-1), { value: 3, items: ['a', 'ask:yes', 'c'] })
    await refused(409, client.runs.create(thread, 'human', { command: { resume: 'again' } }))
    const stopped = await client.runs.wait(thread, 'three', { input: INPUT, interruptBefore: ['b'] })
    assert.equal(stopped.items.at(-1), 'a')
    await client.runs.wait(thread, 'three')
    const jumped = await client.runs.wait(thread, 'three', { command: { update: { value: 50 }, goto: 'c' } })
    assert.equal(jumped.items.at(-1), 'c')
  },

  async 'a stream survives its broken connection'(client, { ask, requests, unique }) {
    const thread = await open(client)
    const input = { count: 0, wanted: 12, pause_seconds: 0.01, gate: unique, gate_at: 6 }
    const ticks = []
    const ids = []
    let last
    for await (const part of client.runs.stream(thread, 'ticking', { input, streamMode: ['custom'] })) {
      last = part
      if (part.event === 'custom') ticks.push(part.data.tick)
      if (part.event === 'custom') ids.push(Number(part.id))
      if (part.event === 'custom' && part.data.tick === 3) await ask('cut', unique)
    }
    assert.deepEqual(ticks, Array.from({ length: 12 }, (_, number) => number))
    assert.deepEqual(ids, [...new Set(ids)].sort((one, other) => one - other))
    assert.equal(last.event, 'end')
    const resumed = requests.filter((request) => Object.keys(request.headers).some((name) => name.toLowerCase() === 'last-event-id'))
    assert.ok(resumed.length > 0, 'the SDK did not reconnect')
  },
}
