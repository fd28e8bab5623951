/* What was typed: as fields or as JSON. The last values of each target stay in this browser. */
import { useMemo, useState } from 'react'
import { formatJson, parseJson } from '@/api/json'
import { useApi } from '@/api/query'
import { getPreference, setPreference } from '@/app/preferences'
import { useSession } from '@/app/session'
import { type Draft, draftOf, fieldsOf, readDraft } from '@/parts/form/schema'
import { NO_OPTIONS, type StartOptions } from './startRequest'
import type { InputForm } from './targets'

interface Remembered {
  message: string
  input: Record<string, unknown>
}

function readObject(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = text.trim() === '' ? {} : parseJson(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null
  } catch {
    return null
  }
}

/** The given values without what the run added itself. */
function givenInput(input: unknown): Remembered {
  const { message, ...rest } = (typeof input === 'object' && input !== null ? input : {}) as Record<string, unknown>
  const nested = rest.input
  return { message: typeof message === 'string' ? message : '', input: typeof nested === 'object' && nested !== null ? (nested as Record<string, unknown>) : rest }
}

export function useStartDraft(target: string, form: InputForm | undefined, like: string | null) {
  const source = useApi('/api/v2/runs/{run_id}', { path: { run_id: like ?? '' } }, { enabled: like !== null })
  const { me } = useSession()
  const preference = `start.${me.tenant}.${target}`
  const [first] = useState<Remembered>(() => (source.data === undefined ? getPreference<Remembered>(preference, { message: '', input: {} }) : givenInput(source.data.input)))
  const fields = useMemo(() => (form === undefined ? [] : fieldsOf(form.schema)), [form])
  const [message, setMessage] = useState(first.message)
  const [typed, setTyped] = useState<Draft | null>(null)
  const [json, setJson] = useState<string | null>(null)
  const [options, setOptions] = useState<StartOptions>(NO_OPTIONS)
  const draft = typed ?? draftOf(fields, first.input)
  const reading = readDraft(fields, draft)
  const known = new Set(fields.map((field) => field.name))
  const extra = Object.fromEntries(Object.entries(first.input).filter(([name]) => !known.has(name)))
  // A target without declared fields is filled in as JSON.
  const asJson = json !== null || fields.length === 0
  const text = json ?? formatJson({ ...extra, ...reading.values })
  const parsed = asJson ? readObject(text) : null
  const values = asJson ? (parsed ?? {}) : { ...extra, ...reading.values }
  const refused =
    form === undefined
      ? 'The form is loading.'
      : asJson && parsed === null
        ? 'The input is not a JSON object.'
        : !asJson && Object.keys(reading.problems).length > 0
          ? 'Complete the form first.'
          : form.message === 'required' && message.trim() === ''
            ? 'A message is required.'
            : null
  return {
    fields,
    message,
    setMessage,
    draft,
    setDraft: setTyped,
    problems: typed === null ? {} : reading.problems,
    asJson,
    text,
    setText: setJson,
    badJson: asJson && parsed === null,
    showJson: () => setJson(formatJson(values)),
    showFields: () => {
      setTyped(draftOf(fields, values))
      setJson(null)
    },
    options,
    setOptions,
    hasOptions: options !== NO_OPTIONS,
    values,
    refused,
    remember: () => setPreference(preference, { message, input: values }),
  }
}

export type StartDraft = ReturnType<typeof useStartDraft>
