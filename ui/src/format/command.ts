/* The same request as a shell command, with $RUNLANE_API_KEY in place of the key. */
import { ROOT } from '@/api/client'
import { formatJson } from '@/api/json'

export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}

export function asCurl(method: string, path: string, body?: unknown): string {
  const url = new URL(path.replace(/^\//, ''), ROOT).href
  const words = ['curl', '--fail-with-body']
  if (method.toLowerCase() !== 'get') words.push('-X', method.toUpperCase())
  words.push(quote(url), '-H', '"Authorization: Bearer $RUNLANE_API_KEY"')
  if (body !== undefined) words.push('-H', quote('Content-Type: application/json'), '-d', quote(formatJson(body, 0)))
  return words.join(' ')
}

export function asCli(...words: string[]): string {
  return ['runlane', ...words.map(quote)].join(' ')
}
