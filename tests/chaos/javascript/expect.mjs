/* What the checks have in common. */
import assert from 'node:assert/strict'

export const INPUT = { value: 1, items: [] }
export const FINAL = { value: 4, items: ['a', 'b', 'c'] }

export async function refused(status, promise) {
  const error = await promise.then(
    () => assert.fail(`expected the answer ${status}`),
    (found) => found,
  )
  assert.equal(error.status, status, String(error))
  return error
}

export async function collect(stream) {
  const parts = []
  for await (const part of stream) parts.push(part)
  return parts
}

export async function eventually(condition, what) {
  for (let deadline = Date.now() + 60_000; Date.now() < deadline; await new Promise((next) => setTimeout(next, 50))) {
    const found = await condition()
    if (found) return found
  }
  return assert.fail(`waited for ${what}`)
}

export async function started(client, thread, graph, options) {
  const run = await client.runs.create(thread, graph, options)
  await eventually(async () => (await client.runs.get(thread, run.run_id)).status === 'running', `the start of ${graph}`)
  return run
}
