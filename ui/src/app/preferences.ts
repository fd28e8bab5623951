/* Choices of this browser: theme, time zone, columns, saved views. They stay on this device. */
import { useCallback, useSyncExternalStore } from 'react'
import { parseJson } from '@/api/json'

const PREFIX = 'runlane.'
const listeners = new Set<() => void>()
const cache = new Map<string, unknown>()

function read<T>(name: string, fallback: T): T {
  if (cache.has(name)) return cache.get(name) as T
  let value = fallback
  try {
    const text = localStorage.getItem(PREFIX + name)
    if (text !== null) value = parseJson(text) as T
  } catch {
    // A browser that refuses storage keeps the choice until the page is closed.
  }
  cache.set(name, value)
  return value
}

export function setPreference<T>(name: string, value: T): void {
  cache.set(name, value)
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value))
  } catch {
    // See read().
  }
  for (const listener of listeners) listener()
}

/** Remove the choices whose names begin with this prefix. */
export function forgetPreferences(prefix: string): void {
  for (const name of cache.keys()) if (name.startsWith(prefix)) cache.delete(name)
  try {
    for (const name of Object.keys(localStorage)) if (name.startsWith(PREFIX + prefix)) localStorage.removeItem(name)
  } catch {
    // See read().
  }
  for (const listener of listeners) listener()
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

if (typeof window !== 'undefined') {
  window.addEventListener('storage', (event) => {
    if (event.key?.startsWith(PREFIX) !== true) return
    cache.delete(event.key.slice(PREFIX.length))
    for (const listener of listeners) listener()
  })
}

export function getPreference<T>(name: string, fallback: T): T {
  return read(name, fallback)
}

export function usePreference<T>(name: string, fallback: T): [T, (value: T) => void] {
  const value = useSyncExternalStore(subscribe, () => read(name, fallback))
  const set = useCallback((next: T) => setPreference(name, next), [name])
  return [value, set]
}
