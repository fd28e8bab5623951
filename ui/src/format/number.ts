/* Numbers, money, tokens and sizes. */

const whole = new Intl.NumberFormat('en-US')

export function formatCount(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : whole.format(value)
}

/** `1.2k`, `3.4M`: for narrow columns. */
export function formatShort(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–'
  const size = Math.abs(value)
  if (size < 1_000) return String(Math.round(value * 10) / 10)
  if (size < 999_950) return `${(value / 1_000).toFixed(size < 9_950 ? 1 : 0)}k`
  if (size < 999_950_000) return `${(value / 1_000_000).toFixed(size < 9_950_000 ? 1 : 0)}M`
  return `${(value / 1_000_000_000).toFixed(1)}B`
}

/** A cost in US dollars; below a dollar two significant digits, because model calls cost fractions of a cent. */
export function formatCost(usd: number | null | undefined): string {
  if (usd === null || usd === undefined) return '–'
  const size = Math.abs(usd)
  if (size === 0) return '$0'
  if (size >= 100) return `$${whole.format(Math.round(usd))}`
  if (size >= 0.995) return `$${usd.toFixed(2)}`
  const decimals = Math.max(2, 1 - Math.floor(Math.log10(size)))
  return `$${usd.toFixed(Math.min(8, decimals))}`
}

export function formatBytes(bytes: number): string {
  if (bytes < 1_000) return `${bytes} B`
  if (bytes < 999_500) return `${(bytes / 1_000).toFixed(bytes < 9_950 ? 1 : 0)} kB`
  return `${(bytes / 1_000_000).toFixed(1)} MB`
}

export function formatPercent(share: number): string {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`
}
