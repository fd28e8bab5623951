/* The stream of a thread, over server-sent events and over a WebSocket: commands, channels, messages and answers. */
import assert from 'node:assert/strict'

import { FINAL, INPUT, eventually } from './expect.mjs'

async function whole(client, transport, streams = client) {
  const thread = streams.threads.stream({ assistantId: 'three', transport })
  try {
    const { run_id: run } = await thread.run.start({ input: INPUT })
    const seen = []
    for await (const values of thread.values) seen.push(values)
    assert.deepEqual(seen.at(-1), FINAL)
    assert.equal((await client.runs.get(thread.threadId, run)).status, 'success')
  } finally {
    await thread.close()
  }
}

export const threadStreamChecks = {
  'a thread is streamed over server-sent events': (client) => whole(client, 'sse'),

  async 'the stream of an existing thread shows a run that ended at once'(client) {
    const { thread_id: thread } = await client.threads.create()
    await client.runs.wait(thread, 'three', { input: INPUT })
    const stream = client.threads.stream(thread, { assistantId: 'three' })
    try {
      const { run_id: run } = await stream.run.start({ input: INPUT })
      await client.runs.join(thread, run)
      const seen = []
      for await (const values of stream.values) seen.push(values)
      assert.equal(seen.at(-1).items.length, 6)
    } finally {
      await stream.close()
    }
  },

  // The SDK refuses WebSockets for a client with hooks.
  'a thread is streamed over a WebSocket': (client, { plain }) => whole(client, 'websocket', plain),

  async 'messages arrive as content blocks'(client) {
    const thread = client.threads.stream({ assistantId: 'chat' })
    try {
      const starting = thread.run.start({ input: { messages: [{ role: 'user', content: 'hi' }] } })
      // Subscribed before the run starts: a subscription that comes after the end of a run gets nothing of it.
      const { messages } = thread
      await starting
      const found = []
      for await (const message of messages) found.push(await message.text)
      assert.deepEqual(found, ['hello there friend'])
    } finally {
      await thread.close()
    }
  },

  async 'a person answers in the same stream'(client) {
    const thread = client.threads.stream({ assistantId: 'human' })
    try {
      await thread.run.start({ input: INPUT })
      await eventually(() => thread.interrupted, 'the question')
      const [question] = thread.interrupts
      assert.deepEqual(question.payload, { question: 'ok?', value: 2 })
      await thread.input.respond({ interrupt_id: question.interruptId, namespace: question.namespace, response: 'yes' })
      const ended = async () => (await client.threads.getState(thread.threadId)).values.items?.length === 3
      await eventually(ended, 'the end')
      assert.deepEqual((await client.threads.getState(thread.threadId)).values.items, ['a', 'ask:yes', 'c'])
    } finally {
      await thread.close()
    }
  },
}
