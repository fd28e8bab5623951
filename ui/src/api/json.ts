/* JSON without loss. Numbers that a double cannot hold exactly stay as their source text. */

export class ExactNumber {
  constructor(readonly source: string) {}
  toString(): string {
    return this.source
  }
  toJSON(): unknown {
    const raw = (JSON as unknown as { rawJSON?: (text: string) => unknown }).rawJSON
    return raw === undefined ? Number(this.source) : raw(this.source)
  }
}

// Only such text can contain a number that JSON.parse would round, so most responses take the fast path.
const SUSPICIOUS = /\d{16}|\d\.\d{14}|\d[eE]/

function isExact(source: string, value: number): boolean {
  if (!Number.isFinite(value)) return false
  if (String(value) === source) return true
  if (Number.isInteger(value) && Number.isSafeInteger(value)) return true
  const digits = source.replace(/^-?0*\.?0*|[eE].*$|\./g, '').replace(/0+$/, '')
  return digits.length <= 15
}

type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown

export function parseJson(text: string): unknown {
  if (!SUSPICIOUS.test(text)) return JSON.parse(text)
  const revive: Reviver = (_key, value, context) => {
    if (typeof value !== 'number' || context?.source === undefined) return value
    return isExact(context.source, value) ? value : new ExactNumber(context.source)
  }
  return (JSON.parse as (text: string, reviver: Reviver) => unknown)(text, revive)
}

/** A number that was typed. Text that JSON does not allow, such as `.5`, is a number as well. */
export function parseNumber(text: string): unknown {
  try {
    const value = parseJson(text.trim())
    return typeof value === 'number' || value instanceof ExactNumber ? value : Number(text)
  } catch {
    return Number(text)
  }
}

export function formatJson(value: unknown, indent = 2): string {
  return JSON.stringify(value, undefined, indent) ?? 'null'
}
