/* Agents of Runlane as assistants: their messages are streamed, and their questions are interrupts. */
import assert from 'node:assert/strict'

import { collect, refused } from './expect.mjs'

const HELLO = 'Hello there, nice to meet you.'
const user = (content) => ({ messages: [{ role: 'user', content }] })
const spoken = (values) => values.messages.map((message) => [message.type, message.content])
const named = (parts, event) => parts.filter((part) => part.event === event).map((part) => part.data)
const open = async (client) => (await client.threads.create()).thread_id

export const nativeChecks = {
  async 'an agent answers in a conversation'(client) {
    const helper = await client.assistants.get('helper')
    assert.equal(helper.graph_id, 'agent:helper')
    const thread = await open(client)
    const parts = await collect(client.runs.stream(thread, 'helper', { input: user('hi'), streamMode: ['messages-tuple', 'values'] }))
    assert.equal(parts[0].event, 'metadata')
    assert.equal(named(parts, 'messages').map(([chunk]) => chunk.content).join(''), HELLO)
    assert.deepEqual(spoken(named(parts, 'values').at(-1)), [['human', 'hi'], ['ai', HELLO]])
    assert.equal(parts.at(-1).event, 'end')
    const second = await client.runs.wait(thread, helper.assistant_id, { input: user('again') })
    assert.deepEqual(spoken(second).map(([type]) => type), ['human', 'ai', 'human', 'ai'])
    const state = await client.threads.getState(thread)
    assert.deepEqual(spoken(state.values), spoken(second))
    assert.equal((await client.threads.getHistory(thread)).length, 2)
  },

  async 'the approval of a tool call is an interrupt'(client) {
    const thread = await open(client)
    const asked = await client.runs.wait(thread, 'careful', { input: user('pay') })
    const [question] = asked.__interrupt__
    assert.equal(question.value.action_requests[0].name, 'pay')
    assert.equal((await client.threads.get(thread)).status, 'interrupted')
    await refused(422, client.runs.create(thread, 'careful', { command: { resume: { ['0'.repeat(32)]: 'approve' } } }))
    const resume = { [question.id]: { decisions: [{ type: 'approve' }] } }
    const values = await client.runs.wait(thread, 'careful', { command: { resume } })
    assert.deepEqual(spoken(values).at(-1), ['ai', 'All done.'])
    await refused(409, client.runs.create(thread, 'careful', { command: { resume: 'approve' } }))
  },
}
