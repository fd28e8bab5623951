/* What a field of a definition means, from the schema of its kind: the text of the reference, where it is written. */

interface SchemaNode {
  $ref?: string
  description?: string
  type?: string
  const?: unknown
  enum?: unknown[]
  default?: unknown
  minimum?: number
  maximum?: number
  maxLength?: number
  properties?: Record<string, SchemaNode>
  additionalProperties?: SchemaNode | boolean
  items?: SchemaNode
  oneOf?: SchemaNode[]
  anyOf?: SchemaNode[]
}

interface Schema extends SchemaNode {
  $defs?: Record<string, SchemaNode>
}

export type Path = readonly (string | number)[]

export interface FieldText {
  /** `steps[0].retry.max_attempts` */
  place: string
  about: string
  /** Its type, the values that it may have, and its default. */
  facts: string
}

/** The schemas that a node stands for. Of several, those whose `type` is the one of the value. */
function variants(schema: Schema, node: SchemaNode | undefined, value: unknown, depth = 0): SchemaNode[] {
  if (node === undefined || depth > 8) return []
  if (node.$ref !== undefined) return variants(schema, { ...schema.$defs?.[node.$ref.replace('#/$defs/', '')], ...(node.description === undefined ? {} : { description: node.description }) }, value, depth + 1)
  const parts = [...(node.oneOf ?? []), ...(node.anyOf ?? [])].filter((part) => Object.keys(part).some((key) => key !== 'required'))
  if (parts.length === 0) return [node]
  const all = parts.flatMap((part) => variants(schema, part, value, depth + 1))
  const type = typeof value === 'object' && value !== null ? (value as { type?: unknown }).type : undefined
  const fitting = all.filter((one) => one.properties?.type?.const !== undefined && one.properties.type.const === type)
  return fitting.length > 0 ? fitting : all
}

function childOf(node: SchemaNode, key: string | number): SchemaNode | undefined {
  if (typeof key === 'number') return node.items
  return node.properties?.[key] ?? (typeof node.additionalProperties === 'object' ? node.additionalProperties : undefined)
}

function placeOf(path: Path): string {
  return path.map((key, index) => (typeof key === 'number' ? `[${key}]` : index === 0 ? key : `.${key}`)).join('')
}

function factsOf(nodes: SchemaNode[], field: SchemaNode): string {
  const types = [...new Set(nodes.map((node) => node.type).filter((type) => type !== undefined && type !== 'null'))]
  const values = [...new Set(nodes.flatMap((node) => [...(node.enum ?? []), ...(node.const === undefined ? [] : [node.const])]))].filter((value) => value !== null)
  const [least, most] = [nodes.find((node) => node.minimum !== undefined)?.minimum, nodes.find((node) => node.maximum !== undefined)?.maximum]
  const bounds = least !== undefined && most !== undefined ? `${least} to ${most}` : least !== undefined ? `at least ${least}` : most !== undefined ? `at most ${most}` : ''
  const initial = field.default === undefined || field.default === null || field.default === '' ? '' : `default ${JSON.stringify(field.default)}`
  return [values.length > 0 ? values.map(String).join(', ') : types.join(' or '), bounds, initial].filter((part) => part !== '').join('; ')
}

/** The text about the field at a path of a definition; null if the schema does not describe it. */
export function describeField(schema: unknown, definition: unknown, path: Path): FieldText | null {
  const whole = (schema ?? {}) as Schema
  let value = definition
  let nodes = variants(whole, whole, value).filter((node) => node.properties !== undefined)
  let field: SchemaNode | undefined
  for (const key of path) {
    const around = nodes.find((node) => node.description !== undefined)
    field = nodes.map((node) => childOf(node, key)).find((child) => child !== undefined)
    if (field === undefined) return null
    value = typeof value === 'object' && value !== null ? (value as Record<string | number, unknown>)[key] : undefined
    nodes = variants(whole, field, value)
    // The type of a step means what the step does.
    if (key === 'type' && field.description === undefined) field = { ...field, description: around?.description }
  }
  if (field === undefined) return null
  const about = field.description ?? nodes.find((node) => node.description !== undefined)?.description
  return about === undefined ? null : { place: placeOf(path), about, facts: factsOf(nodes, field) }
}
