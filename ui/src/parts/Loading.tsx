/* The states of a query: loading without a jump, an error with its cure, old data while the server is away. */
import type { UseQueryResult } from '@tanstack/react-query'
import { RefreshCw } from 'lucide-react'
import { type ReactNode, useEffect, useState } from 'react'
import type { ApiError } from '@/api/errors'
import { Button } from './Button'

export function Skeleton({ rows = 6, height = 32 }: { rows?: number; height?: number }) {
  return (
    <div role="status" aria-label="Loading" className="flex flex-col">
      {Array.from({ length: rows }, (_unused, index) => (
        <div key={index} className="flex items-center border-b border-line px-3" style={{ height }}>
          <div className="h-3 rounded-sm bg-sunken" style={{ width: `${70 - ((index * 17) % 45)}%` }} />
        </div>
      ))}
    </div>
  )
}

const PERMISSION = /permission "?([a-z]+:[a-z]+)"?/

export function ErrorNote({ error, onRetry }: { error: ApiError; onRetry?: () => void }) {
  const permission = error.status === 403 ? PERMISSION.exec(error.message)?.[1] : undefined
  return (
    <div role="alert" className="m-3 rounded-md border border-bad bg-bad-soft px-3 py-2">
      <p className="font-medium break-words text-bad">{error.message}</p>
      {permission !== undefined && <p>Sign in with a key whose role has {permission}.</p>}
      {error.fields.length > 0 && (
        <ul className="mt-1 list-disc pl-4">
          {error.fields.map((problem) => (
            <li key={problem.field + problem.message} className="break-words">
              <code className="font-mono text-xs">{problem.field}</code>: {problem.message}
            </li>
          ))}
        </ul>
      )}
      <p className="mt-1 flex flex-wrap items-center gap-x-3 gap-y-1 text-xs text-soft">
        <span>
          Code <code className="font-mono">{error.code}</code>
        </span>
        {error.requestId !== null && (
          <span>
            Request <code className="font-mono">{error.requestId}</code>
          </span>
        )}
        {error.retryAfterSeconds !== null && <span>Retry in {error.retryAfterSeconds} s.</span>}
        {onRetry !== undefined && (
          <Button small icon={RefreshCw} onClick={onRetry}>
            Try again
          </Button>
        )}
      </p>
    </div>
  )
}

/** After two seconds a slow answer is explained. */
function SlowNote({ onCancel }: { onCancel?: () => void }) {
  const [slow, setSlow] = useState(false)
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), 2_000)
    return () => clearTimeout(timer)
  }, [])
  if (!slow) return null
  return (
    <p role="status" className="flex items-center gap-2 px-3 py-2 text-soft">
      The server is still searching.
      {onCancel !== undefined && (
        <Button small onClick={onCancel}>
          Stop
        </Button>
      )}
    </p>
  )
}

function Stopped({ onAgain }: { onAgain: () => void }) {
  return (
    <p role="status" className="flex items-center gap-2 px-3 py-2 text-soft">
      The search was stopped.
      <Button small icon={RefreshCw} onClick={onAgain}>
        Search again
      </Button>
    </p>
  )
}

export function Loaded<T>({ query, children, rows, onCancel }: { query: UseQueryResult<T, ApiError>; children: (value: T) => ReactNode; rows?: number; onCancel?: () => void }) {
  if (query.data !== undefined) {
    // A lost connection and an ended session are reported above the page. Any other refusal makes what is shown old.
    const refused = query.error !== null && !query.error.offline && query.error.status !== 401 ? query.error : null
    return (
      <>
        {refused !== null && <ErrorNote error={refused} onRetry={() => void query.refetch()} />}
        {children(query.data)}
      </>
    )
  }
  const error = query.error ?? (query.failureReason as ApiError | null)
  if (error !== null) return <ErrorNote error={error} onRetry={() => void query.refetch()} />
  if (onCancel !== undefined && query.fetchStatus === 'idle') return <Stopped onAgain={() => void query.refetch()} />
  return (
    <>
      <SlowNote onCancel={onCancel} />
      <Skeleton rows={rows} />
    </>
  )
}
