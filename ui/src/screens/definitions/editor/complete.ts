/* Completion from the schema of the kind, and from what exists: keys, enum values, step ids and names. */
import type { CompletionContext, CompletionResult } from '@codemirror/autocomplete'

export interface Vocabulary {
  /** Property names of the schema, with their description. */
  keys: Map<string, string>
  /** Values that the schema allows for a key. */
  values: Map<string, Set<string>>
  /** Names of agents, tools, tasks and orchestrations. */
  names: string[]
}

interface SchemaNode {
  properties?: Record<string, SchemaNode>
  description?: string
  enum?: unknown[]
  const?: unknown
}

/** Collect the keys and their allowed values from every part of a schema. */
export function vocabularyOf(schema: unknown, names: string[]): Vocabulary {
  const found: Vocabulary = { keys: new Map(), values: new Map(), names }
  const visit = (node: unknown, depth: number) => {
    if (typeof node !== 'object' || node === null || depth > 12) return
    for (const [name, property] of Object.entries((node as SchemaNode).properties ?? {})) {
      if (!found.keys.has(name)) found.keys.set(name, property.description ?? '')
      const options = [...(property.enum ?? []), property.const].filter((value): value is string => typeof value === 'string')
      if (options.length > 0) found.values.set(name, new Set([...(found.values.get(name) ?? []), ...options]))
    }
    for (const child of Object.values(node)) visit(child, depth + 1)
  }
  visit(schema, 0)
  return found
}

export function stepIds(text: string): string[] {
  return [...text.matchAll(/"id"\s*:\s*"((?:[^"\\]|\\.)*)"/g)].map((match) => match[1]!)
}

export function complete(vocabulary: Vocabulary) {
  return (context: CompletionContext): CompletionResult | null => {
    const word = context.matchBefore(/"[^"\n]*/)
    if (word === null) return null
    const before = context.state.sliceDoc(Math.max(0, word.from - 200), word.from)
    const key = /"([\w-]+)"\s*:\s*\[?(?:\s*"[^"]*"\s*,\s*)*$/.exec(before)?.[1]
    if (key === undefined) {
      return { from: word.from + 1, options: [...vocabulary.keys].map(([label, about]) => ({ label, info: about === '' ? undefined : about, type: 'property' })) }
    }
    const options = [...(vocabulary.values.get(key) ?? [])].map((label) => ({ label, type: 'enum' }))
    const steps = /step/.test(key) ? stepIds(context.state.doc.toString()).map((label) => ({ label, detail: 'step', type: 'variable' })) : []
    const names = /tool|agent|orchestration|task|server/.test(key) ? vocabulary.names.map((label) => ({ label, type: 'variable' })) : []
    const all = [...options, ...steps, ...names]
    return all.length === 0 ? null : { from: word.from + 1, options: all }
  }
}
