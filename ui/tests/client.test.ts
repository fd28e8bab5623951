import { afterEach, expect, test, vi } from 'vitest'
import { send } from '@/api/client'

afterEach(() => vi.unstubAllGlobals())

/** A server whose connection ends with this error after the first bytes of its answer. */
function breakWith(error: unknown): void {
  const body = new ReadableStream({
    start: (stream) => stream.enqueue(new TextEncoder().encode('{"logs": [')),
    pull: (stream) => stream.error(error),
  })
  vi.stubGlobal('fetch', () => Promise.resolve(new Response(body, { headers: { 'content-type': 'application/json' } })))
}

test('an answer that breaks off is a lost connection, after which a page asks again', async () => {
  breakWith(new TypeError('network error'))
  await expect(send('get', '/api/v2/runs')).rejects.toMatchObject({ name: 'ApiError', code: 'network', offline: true, retryable: true })
})

test('an answer that a page has given up is not a lost connection', async () => {
  breakWith(new DOMException('The page has left.', 'AbortError'))
  await expect(send('get', '/api/v2/runs')).rejects.toMatchObject({ name: 'AbortError' })
})
