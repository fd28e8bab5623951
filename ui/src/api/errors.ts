/* Errors of the API as values: the code for programs, the sentence for people, the fields of a form. */

export interface FieldProblem {
  field: string
  message: string
}

export class ApiError extends Error {
  override readonly name = 'ApiError'
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly fields: FieldProblem[] = [],
    readonly requestId: string | null = null,
    readonly retryAfterSeconds: number | null = null,
  ) {
    super(message)
  }
  /** Whether a later try may succeed without a change of the request. */
  get retryable(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500
  }
  get offline(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504
  }
}

export function networkError(): ApiError {
  return new ApiError(0, 'network', 'The server does not answer. Check that it runs and that this device is online.')
}

export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  return new ApiError(-1, 'browser', error instanceof Error ? error.message : String(error))
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
}

export function errorFrom(response: Response, body: unknown): ApiError {
  const record = asRecord(body)
  const message = [record.message, record.detail].find((part) => typeof part === 'string')
  const fields = Array.isArray(record.fields)
    ? record.fields.map((entry) => {
        const item = asRecord(entry)
        return { field: String(item.field ?? ''), message: String(item.message ?? '') }
      })
    : []
  const retryAfter = Number(response.headers.get('retry-after'))
  return new ApiError(
    response.status,
    typeof record.code === 'string' ? record.code : `http_${response.status}`,
    typeof message === 'string' ? message : `The server answered ${response.status} ${response.statusText}.`,
    fields,
    response.headers.get('x-request-id'),
    Number.isFinite(retryAfter) && retryAfter > 0 ? retryAfter : null,
  )
}
