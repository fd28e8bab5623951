/* Assistants, threads, states, crons and items. */
import assert from 'node:assert/strict'

import { FINAL, INPUT, refused } from './expect.mjs'

export const resourceChecks = {
  async 'assistants are created, changed, versioned, found and deleted'(client, { unique }) {
    const metadata = { check: unique }
    const made = await client.assistants.create({ graphId: 'three', name: unique, metadata, config: { tags: ['x'] } })
    assert.equal(made.version, 1)
    assert.equal((await client.assistants.get(made.assistant_id)).name, unique)
    const changed = await client.assistants.update(made.assistant_id, { description: 'changed' })
    assert.deepEqual([changed.version, changed.graph_id, changed.config.tags], [2, 'three', ['x']])
    const versions = await client.assistants.getVersions(made.assistant_id)
    assert.deepEqual(versions.map((one) => one.version), [2, 1])
    assert.equal((await client.assistants.setLatest(made.assistant_id, 1)).version, 1)
    const page = await client.assistants.search({ metadata, includePagination: true, limit: 1 })
    assert.deepEqual([page.assistants.length, page.next], [1, null])
    assert.equal(await client.assistants.count({ metadata }), 1)
    await client.assistants.delete(made.assistant_id)
    await refused(404, client.assistants.get(made.assistant_id))
    const again = { graphId: 'three', assistantId: crypto.randomUUID(), metadata }
    await client.assistants.create(again)
    await refused(409, client.assistants.create(again))
    assert.equal((await client.assistants.create({ ...again, ifExists: 'do_nothing' })).assistant_id, again.assistantId)
    await refused(404, client.assistants.create({ graphId: 'nope' }))
  },

  async 'the graph of an assistant is described'(client) {
    const drawn = await client.assistants.getGraph('three', { xray: true })
    assert.deepEqual(drawn.nodes.map((node) => node.id), ['__start__', 'a', 'b', 'c', '__end__'])
    const schemas = await client.assistants.getSchemas('three')
    assert.equal(schemas.graph_id, 'three')
    assert.ok(schemas.input_schema.properties.value)
    assert.deepEqual(await client.assistants.getSubgraphs('three', { recurse: true }), {})
  },

  async 'threads are created, changed, copied, found and deleted'(client, { unique }) {
    const metadata = { check: unique }
    const threadId = crypto.randomUUID()
    const made = await client.threads.create({ threadId, metadata, graphId: 'three', ttl: 60 })
    assert.deepEqual([made.thread_id, made.status, made.metadata.graph_id], [threadId, 'idle', 'three'])
    await refused(409, client.threads.create({ threadId }))
    assert.equal((await client.threads.create({ threadId, ifExists: 'do_nothing' })).thread_id, threadId)
    assert.equal((await client.threads.update(threadId, { metadata: { more: 1 } })).metadata.check, unique)
    await client.runs.wait(threadId, 'three', { input: INPUT })
    const copied = await client.threads.copy(threadId)
    assert.deepEqual((await client.threads.getState(copied.thread_id)).values, FINAL)
    assert.equal(await client.threads.count({ metadata, status: 'idle' }), 2)
    const found = await client.threads.search({ metadata, sortBy: 'created_at', sortOrder: 'asc', limit: 5 })
    assert.deepEqual(found.map((one) => one.thread_id), [threadId, copied.thread_id])
    assert.deepEqual(found[0].values, FINAL)
    const selected = await client.threads.search({ ids: [threadId], select: ['thread_id'], values: { value: 4 } })
    assert.deepEqual(selected, [{ thread_id: threadId }])
    if (client.threads.prune !== undefined) {
      assert.equal((await client.threads.prune([copied.thread_id])).pruned_count, 1)
      await refused(404, client.threads.get(copied.thread_id))
    }
    await client.threads.delete(threadId)
    await refused(404, client.threads.get(threadId))
  },

  async 'states are read, changed and listed'(client) {
    const supersteps = [{ updates: [{ values: INPUT, asNode: '__start__' }] }]
    const { thread_id: thread } = await client.threads.create({ graphId: 'three', supersteps })
    const before = await client.threads.getState(thread, undefined, { subgraphs: true })
    assert.deepEqual([before.values, before.next], [INPUT, ['a']])
    assert.deepEqual(await client.runs.wait(thread, 'three'), FINAL)
    const history = await client.threads.getHistory(thread, { limit: 50 })
    assert.deepEqual(history[0].values, FINAL)
    assert.deepEqual(history.map((state) => state.next[0]).slice(0, 4), [undefined, 'c', 'b', 'a'])
    const middle = history[2].checkpoint
    assert.deepEqual((await client.threads.getState(thread, middle)).values, history[2].values)
    assert.deepEqual((await client.threads.getState(thread, middle.checkpoint_id)).next, ['b'])
    const older = await client.threads.getHistory(thread, { limit: 1, before: { configurable: middle } })
    assert.deepEqual(older[0].next, ['a'])
    const changed = await client.threads.updateState(thread, { values: { value: 10 }, asNode: 'a' })
    assert.ok(changed.checkpoint.checkpoint_id)
    assert.deepEqual((await client.threads.getState(thread)).next, ['b'])
    assert.deepEqual(await client.runs.wait(thread, 'three'), { value: 12, items: [...FINAL.items, 'b', 'c'] })
    const forked = await client.runs.wait(thread, 'three', { checkpoint: middle })
    assert.deepEqual(forked, FINAL)
    await refused(422, client.threads.updateState(thread, { values: { value: 1 }, asNode: 'nope' }))
    await refused(404, client.threads.getState(thread, crypto.randomUUID()))
  },

  async 'crons are created, changed, found and deleted'(client, { unique }) {
    const metadata = { check: unique }
    const { thread_id: thread } = await client.threads.create()
    const made = await client.crons.create('three', { schedule: '0 3 1 1 *', input: INPUT, metadata, enabled: false })
    const bound = await client.crons.createForThread(thread, 'three', { schedule: '0 3 1 1 *', input: INPUT, metadata })
    assert.equal(bound.thread_id, thread)
    const changed = await client.crons.update(made.cron_id, { schedule: '0 4 1 1 *', enabled: true })
    assert.deepEqual([changed.schedule, changed.enabled], ['0 4 1 1 *', true])
    const found = await client.crons.search({ threadId: thread, sortBy: 'created_at', sortOrder: 'asc' })
    assert.deepEqual(found.map((one) => one.cron_id), [bound.cron_id])
    assert.equal(await client.crons.count({ threadId: thread }), 1)
    await refused(422, client.crons.create('three', { schedule: 'nonsense', input: INPUT }))
    for (const { cron_id } of [made, bound]) await client.crons.delete(cron_id)
    assert.equal(await client.crons.count({ threadId: thread }), 0)
    await refused(404, client.crons.delete(made.cron_id))
  },

  async 'items are stored, searched, listed and deleted'(client, { unique }) {
    const place = ['javascript', unique.replaceAll('.', '-')]
    await client.store.putItem(place, 'one', { colour: 'red', size: 1 })
    await client.store.putItem(place, 'two', { colour: 'blue', size: 2 }, { ttl: 60, index: false })
    const item = await client.store.getItem(place, 'one', { refreshTtl: true })
    assert.deepEqual([item.value, item.namespace], [{ colour: 'red', size: 1 }, place])
    assert.ok(Date.parse(item.createdAt))
    const found = await client.store.searchItems(place, { filter: { colour: 'blue' } })
    assert.deepEqual(found.items.map((one) => one.key), ['two'])
    const { namespaces } = await client.store.listNamespaces({ prefix: place })
    assert.deepEqual(namespaces, [place])
    await client.store.deleteItem(place, 'one')
    assert.equal(await client.store.getItem(place, 'one'), null)
  },
}
