/* An error of a run or an attempt: message first, then code, place and traceback. */
import { formatJson } from '@/api/json'
import { visible } from '@/format/text'
import { cx } from '@/parts/classes'
import { CopyIconButton } from '@/parts/Copy'
import { JsonView } from '@/parts/json/JsonView'

const KNOWN = new Set(['type', 'code', 'message', 'traceback', 'step'])

export function RunError({ error, brief = false }: { error: Record<string, unknown>; brief?: boolean }) {
  const message = typeof error.message === 'string' ? error.message : formatJson(error)
  const code = [error.type, error.code].find((part) => typeof part === 'string') as string | undefined
  const rest = Object.fromEntries(Object.entries(error).filter(([key, value]) => !KNOWN.has(key) && value !== null))
  return (
    <div className="min-w-0">
      {(code !== undefined || typeof error.step === 'string') && (
        <p className={cx('flex flex-wrap items-baseline gap-x-2', brief && 'sm:float-right sm:pl-3')}>
          {code !== undefined && <code className="font-mono text-xs text-soft">{code}</code>}
          {typeof error.step === 'string' && <span className="text-xs text-soft">in step {error.step}</span>}
        </p>
      )}
      <p className={brief ? 'line-clamp-3 break-words text-bad' : 'break-words whitespace-pre-wrap text-bad'}>{visible(message)}</p>
      {!brief && typeof error.traceback === 'string' && (
        <details open className="relative mt-2">
          <summary className="w-fit text-soft">Traceback</summary>
          <span className="absolute top-6 right-1">
            <CopyIconButton text={error.traceback} label="Copy the traceback" />
          </span>
          <pre tabIndex={0} className="mt-1 max-h-96 overflow-auto rounded-md bg-sunken p-2 font-mono text-xs">{visible(error.traceback)}</pre>
        </details>
      )}
      {!brief && Object.keys(rest).length > 0 && <JsonView value={rest} label="the error" />}
    </div>
  )
}
