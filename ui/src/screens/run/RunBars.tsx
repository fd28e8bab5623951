/* Bars about what is not shown: deleted events, events that are not loaded, a stream that is being restored. */
import { toApiError } from '@/api/errors'
import { formatCount } from '@/format/number'
import { Button } from '@/parts/Button'
import type { RunStore } from './model/store'

const BAR = 'flex flex-wrap items-center gap-2 border-b border-line bg-wait-soft px-4 py-1 text-xs text-wait'

export function TruncatedBar({ store }: { store: RunStore }) {
  if (store.model.first <= 1) return null
  return <p className={BAR}>Events before number {formatCount(store.model.first)} are no longer kept. The recorded steps are complete.</p>
}

export function IncompleteBar({ store }: { store: RunStore }) {
  if (store.error !== null) {
    return (
      <p role="alert" className={BAR}>
        The events could not be read: {toApiError(store.error).message}
        <Button small onClick={() => void store.start()}>
          Try again
        </Button>
      </p>
    )
  }
  if (store.complete) return null
  return <p className={BAR}>This run has more steps than the timeline reads. The list of events has all of them.</p>
}

export function StreamBar({ store }: { store: RunStore }) {
  if (store.connected || store.model.ended) return null
  return (
    <p role="status" className={BAR}>
      The stream of this run is interrupted. It continues after event {formatCount(store.model.last)}.
    </p>
  )
}
