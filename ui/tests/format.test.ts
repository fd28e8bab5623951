import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { formatDuration, parseDuration } from '@/format/duration'
import { formatBytes, formatCost, formatShort } from '@/format/number'
import { namesHost, oneLine, visible } from '@/format/text'
import { describeMoment, formatExact, formatRelative, secondsBetween } from '@/format/time'
import { asCurl, quote } from '@/format/command'

describe('durations', () => {
  test.each([
    [null, '–'], [0, '0s'], [0.0004, '<1ms'], [0.25, '250ms'], [0.9999, '1.00s'], [1.234, '1.23s'], [12.34, '12.3s'], [59.96, '1m'],
    [61, '1m 1s'], [3600, '1h'], [3660, '1h 1m'], [90_000, '1d 1h'], [-2, '-2.00s'],
  ])('%s is %s', (seconds, text) => expect(formatDuration(seconds)).toBe(text))

  test('a longer time is never shown as a shorter unit without a larger number', () => {
    fc.assert(fc.property(fc.double({ min: 0.001, max: 1e7, noNaN: true }), (seconds) => {
      expect(formatDuration(seconds)).toMatch(/^(\d+ms|\d+(\.\d+)?s|\d+m( \d+s)?|\d+h( \d+m)?|\d+d( \d+h)?)$/)
    }))
  })

  test.each([['15m', 900], ['24h', 86_400], ['7d', 604_800], ['1.5h', 5400], ['soon', null], ['', null]])('%s is parsed', (text, seconds) =>
    expect(parseDuration(text)).toBe(seconds))
})

describe('numbers', () => {
  test.each([[null, '–'], [0, '$0'], [0.0042, '$0.0042'], [0.012, '$0.012'], [0.5, '$0.50'], [1.239, '$1.24'], [99.9, '$99.90'], [1234.5, '$1,235']])('cost %s', (usd, text) =>
    expect(formatCost(usd)).toBe(text))
  test.each([[12, '12'], [1234, '1.2k'], [12_345, '12k'], [1_234_567, '1.2M'], [2e9, '2.0B']])('short %s', (value, text) => expect(formatShort(value)).toBe(text))
  test('bytes', () => expect([formatBytes(12), formatBytes(1200), formatBytes(64_000), formatBytes(5e6)]).toEqual(['12 B', '1.2 kB', '64 kB', '5.0 MB']))
})

describe('times', () => {
  const at = '2026-11-17T09:04:31.120Z'
  test('UTC is exact', () => expect(formatExact(at, 'utc')).toBe('2026-11-17 09:04:31 UTC'))
  test('the hover text has both zones', () => expect(describeMoment(at)).toContain('(UTC 2026-11-17 09:04:31.120)'))
  test.each([[0, 'now'], [12_000, '12s ago'], [180_000, '3m ago'], [-60_000, 'in 1m']])('%s ms later', (later, text) => expect(formatRelative(at, Date.parse(at) + later)).toBe(text))
  test('an end that has not come is now', () => expect(secondsBetween(at, null, Date.parse(at) + 5000)).toBe(5))
  test('what is missing is a dash', () => expect([formatExact(null), formatRelative(undefined)]).toEqual(['–', '–']))
})

describe('text of others', () => {
  test('characters that deceive become visible', () => {
    expect(visible('a\u202eb\u0000c\u200b')).toBe('a\\u202eb\\u0000c\\u200b')
    expect(visible('\ud800')).toBe('\\ud800')
    expect(visible('line\n\ttab 😀')).toBe('line\n\ttab 😀')
  })
  test('terminal escapes are removed', () => expect(visible('\u001b[31mred\u001b[0m')).toBe('red'))
  test.each([
    ['https://k.com/a', 'https://k.com/a', true], ['k.com', 'https://k.com/', true], ['K.com?a=1', 'https://k.com/?a=1', true], ['a@k.com', 'mailto:a@k.com', true],
    ['bank.com', 'https://k.com/', false], ['https://bank.com/k.com', 'https://k.com/', false], ['k.com.bank.org', 'https://k.com/', false],
    ['bank.com@k.com', 'https://k.com/', false], ['k.com', 'https://k.com:8443/', false], ['b\u0430nk.com', 'https://b\u0430nk.com/', false], ['click', 'https://k.com/', false],
  ])('%s for %s names its host: %s', (text, href, named) => expect(namesHost(text, new URL(href))).toBe(named))
  test('one line is one line', () => expect(oneLine('a\n  b\r\nc', 10)).toBe('a b c'))
})

describe('commands', () => {
  test('words are quoted for a shell', () => expect([quote('plain-1'), quote("it's"), quote('')]).toEqual(['plain-1', `'it'\\''s'`, "''"]))
  test('curl names the variable and not a key', () => {
    const command = asCurl('post', '/api/v2/runs/run_1/cancel', { note: "it's" })
    expect(command).toContain('"Authorization: Bearer $RUNLANE_API_KEY"')
    expect(command).toContain('-X POST')
    expect(command).toContain(`'{"note":"it'\\''s"}'`)
  })
})
