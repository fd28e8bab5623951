/* JSON Schema as a form: which control a property gets, the value it starts with, and what its text means. */
import { parseJson, parseNumber } from '@/api/json'

export interface JsonSchema {
  type?: string | string[]
  title?: string
  description?: string
  default?: unknown
  enum?: unknown[]
  const?: unknown
  properties?: Record<string, JsonSchema>
  required?: string[]
  items?: JsonSchema
  anyOf?: JsonSchema[]
  oneOf?: JsonSchema[]
  allOf?: JsonSchema[]
  $ref?: string
  $defs?: Record<string, JsonSchema>
  format?: string
  minimum?: number
  maximum?: number
  maxLength?: number
  multipleOf?: number
  examples?: unknown[]
  additionalProperties?: boolean | JsonSchema
}

export type Control = 'text' | 'long' | 'number' | 'integer' | 'boolean' | 'choice' | 'choices' | 'date' | 'email' | 'json'

export interface FormField {
  name: string
  label: string
  hint?: string
  control: Control
  required: boolean
  /** The value may be null. */
  nullable: boolean
  options: string[]
  initial: unknown
  minimum?: number
  maximum?: number
}

function resolve(schema: JsonSchema, root: JsonSchema): JsonSchema {
  const name = schema.$ref === undefined ? undefined : /^#\/\$defs\/(.+)$/.exec(schema.$ref)?.[1]
  if (name !== undefined) return { ...root.$defs?.[name], ...schema, $ref: undefined }
  if (schema.allOf?.length === 1) return { ...resolve(schema.allOf[0]!, root), ...schema, allOf: undefined }
  return schema
}

/** Split off `null`, which only means that the field may be left out. */
function withoutNull(schema: JsonSchema, root: JsonSchema): { schema: JsonSchema; nullable: boolean } {
  const options = schema.anyOf ?? schema.oneOf
  if (options !== undefined) {
    const rest = options.filter((option) => option.type !== 'null')
    if (rest.length === 1) return { schema: { ...schema, ...resolve(rest[0]!, root), anyOf: undefined, oneOf: undefined }, nullable: rest.length < options.length }
  }
  if (Array.isArray(schema.type)) {
    const rest = schema.type.filter((type) => type !== 'null')
    if (rest.length === 1) return { schema: { ...schema, type: rest[0]! }, nullable: rest.length < schema.type.length }
  }
  return { schema, nullable: false }
}

function controlOf(schema: JsonSchema): Control {
  if (schema.enum !== undefined && schema.enum.every((option) => typeof option === 'string')) return 'choice'
  if (schema.type === 'boolean') return 'boolean'
  if (schema.type === 'integer') return 'integer'
  if (schema.type === 'number') return 'number'
  if (schema.type === 'string') {
    if (schema.format === 'date') return 'date'
    if (schema.format === 'email') return 'email'
    return (schema.maxLength ?? 0) > 200 || schema.format === 'textarea' ? 'long' : 'text'
  }
  if (schema.type === 'array' && schema.items?.enum !== undefined) return 'choices'
  return 'json'
}

export function fieldsOf(root: JsonSchema): FormField[] {
  const required = new Set(root.required ?? [])
  return Object.entries(root.properties ?? {}).map(([name, given]) => {
    const { schema, nullable } = withoutNull(resolve(given, root), root)
    const options = (schema.enum ?? schema.items?.enum ?? []).map(String)
    return {
      name,
      label: given.title ?? schema.title ?? name,
      hint: given.description ?? schema.description,
      control: controlOf(schema),
      required: required.has(name),
      nullable,
      options,
      initial: given.default ?? schema.default,
      minimum: schema.minimum,
      maximum: schema.maximum,
    }
  })
}

interface QuestionField {
  key?: string
  name?: string
  type?: string
  label?: string
  options?: string[]
  required?: boolean
  default?: unknown
}

const QUESTION_CONTROLS: Record<string, Control> = {
  text: 'text',
  textarea: 'long',
  number: 'number',
  boolean: 'boolean',
  date: 'date',
  email: 'email',
  select: 'choice',
  multiselect: 'choices',
}

/** The form of a question to a person. */
export function questionFields(fields: readonly unknown[]): FormField[] {
  return fields.map((entry) => {
    const field = entry as QuestionField
    const name = field.key ?? field.name ?? ''
    return {
      name,
      label: field.label || name,
      control: QUESTION_CONTROLS[field.type ?? 'text'] ?? 'json',
      required: field.required === true,
      nullable: field.required !== true,
      options: field.options ?? [],
      initial: field.default ?? undefined,
    }
  })
}

/** The text of a control: numbers and JSON are edited as text, so that a half-typed value is not lost. */
export type Draft = Record<string, string | boolean | string[]>

export function draftOf(fields: FormField[], values: Record<string, unknown> = {}): Draft {
  const draft: Draft = {}
  for (const field of fields) {
    const value = values[field.name] ?? field.initial
    if (field.control === 'boolean') draft[field.name] = value === true
    else if (field.control === 'choices') draft[field.name] = Array.isArray(value) ? value.map(String) : []
    else if (value === undefined || value === null) draft[field.name] = ''
    else draft[field.name] = typeof value === 'string' && field.control !== 'json' ? value : JSON.stringify(value, undefined, 2)
  }
  return draft
}

export interface Reading {
  values: Record<string, unknown>
  problems: Record<string, string>
}

function readOne(field: FormField, text: string): { value?: unknown; problem?: string } {
  if (text.trim() === '') {
    if (field.required) return { problem: 'A value is required.' }
    return {}
  }
  if (field.control === 'number' || field.control === 'integer') {
    const value = Number(text)
    if (!Number.isFinite(value)) return { problem: `"${text}" is not a number.` }
    if (field.control === 'integer' && !Number.isInteger(value)) return { problem: `"${text}" is not a whole number.` }
    if (field.minimum !== undefined && value < field.minimum) return { problem: `Must be ${field.minimum} or more.` }
    if (field.maximum !== undefined && value > field.maximum) return { problem: `Must be ${field.maximum} or less.` }
    return { value: parseNumber(text) }
  }
  if (field.control !== 'json') return { value: text }
  try {
    return { value: parseJson(text) }
  } catch {
    return { problem: 'This is not valid JSON.' }
  }
}

/** What is sent: empty optional fields are left out, so that the defaults of the target apply. */
export function readDraft(fields: FormField[], draft: Draft): Reading {
  const values: Record<string, unknown> = {}
  const problems: Record<string, string> = {}
  for (const field of fields) {
    const entry = draft[field.name]
    if (typeof entry === 'boolean') {
      if (entry || field.required || field.initial === true) values[field.name] = entry
    } else if (Array.isArray(entry)) {
      if (entry.length > 0 || field.required) values[field.name] = entry
    } else {
      const { value, problem } = readOne(field, entry ?? '')
      if (problem !== undefined) problems[field.name] = problem
      else if (value !== undefined) values[field.name] = value
    }
  }
  return { values, problems }
}
