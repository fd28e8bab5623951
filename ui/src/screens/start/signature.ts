/* The signature of a task as a JSON Schema, for servers that do not send the schema itself. */
import type { JsonSchema } from '@/parts/form/schema'

const OPENING = '([{'
const CLOSING = ')]}'

/** Split at a separator that is outside of brackets and quotes. */
export function splitOutside(text: string, separator: string): string[] {
  const parts: string[] = []
  let depth = 0
  let quote = ''
  let from = 0
  for (let at = 0; at < text.length; at++) {
    const character = text[at]!
    if (quote !== '') {
      if (character === '\\') at += 1
      else if (character === quote) quote = ''
    } else if (character === '"' || character === "'") quote = character
    else if (OPENING.includes(character)) depth += 1
    else if (CLOSING.includes(character)) depth -= 1
    else if (character === separator && depth === 0) {
      parts.push(text.slice(from, at))
      from = at + 1
    }
  }
  return [...parts, text.slice(from)].map((part) => part.trim()).filter((part) => part !== '')
}

/** A Python literal as a value; undefined for anything else. */
export function readLiteral(text: string): unknown {
  if (text === 'None') return null
  if (text === 'True' || text === 'False') return text === 'True'
  if (/^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text)) return Number(text)
  const string = /^(['"])(.*)\1$/s.exec(text)
  if (string !== null) return string[2]!.replace(/\\(['"\\])/g, '$1')
  if (text === '[]') return []
  return text === '{}' ? {} : undefined
}

const TYPES: Record<string, JsonSchema> = {
  str: { type: 'string' },
  int: { type: 'integer' },
  float: { type: 'number' },
  bool: { type: 'boolean' },
  date: { type: 'string', format: 'date' },
}

function schemaOfType(annotation: string): JsonSchema {
  const options = splitOutside(annotation, '|').filter((option) => option !== 'None')
  if (options.length !== 1) return {}
  const literal = /^Literal\[(.*)\]$/s.exec(options[0]!)
  if (literal === null) return TYPES[options[0]!] ?? {}
  const values = splitOutside(literal[1]!, ',').map(readLiteral)
  return values.every((value) => typeof value === 'string') ? { type: 'string', enum: values } : {}
}

export function schemaOfSignature(signature: string): JsonSchema {
  const inside = /^[^(]*\((.*)\)\s*(?:->.*)?$/s.exec(signature.trim())?.[1] ?? ''
  const schema: JsonSchema = { type: 'object', properties: {}, required: [] }
  for (const parameter of splitOutside(inside, ',')) {
    const match = /^(\w+)\s*(?::\s*(.+?))?$/s.exec(splitOutside(parameter, '=')[0] ?? '')
    if (match === null) continue
    const fallback = splitOutside(parameter, '=')[1]
    const annotation = match[2] ?? ''
    // Annotations of modules that postpone them are strings.
    const unquoted = readLiteral(annotation)
    const property = schemaOfType(typeof unquoted === 'string' ? unquoted : annotation)
    if (fallback === undefined) schema.required!.push(match[1]!)
    else property.default = readLiteral(fallback)
    schema.properties![match[1]!] = property
  }
  return schema
}
