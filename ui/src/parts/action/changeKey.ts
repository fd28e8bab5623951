/* Idempotency keys: the same request sent again is the same change, and another request is another change. */
import { useRef } from 'react'
import type { ActionRequest } from './action'

/** Not crypto.randomUUID, which browsers have only on pages over HTTPS and of this machine. */
export function newKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('')
}

/** Return the key of a request. It stays after a failure: the server may have made the change before the connection broke. */
export function useChangeKey(): (request: ActionRequest) => string {
  const known = useRef<{ text: string; key: string } | null>(null)
  return ({ method, path, body }) => {
    const text = JSON.stringify([method, path, body])
    if (known.current?.text !== text) known.current = { text, key: newKey() }
    return known.current.key
  }
}
