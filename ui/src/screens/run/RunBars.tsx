/* Bars about what is not shown: deleted events, events that are not loaded, a stream that is being restored. */
import { formatCount } from '@/format/number'
import { Button } from '@/parts/Button'
import type { RunStore } from './model/store'

const BAR = 'flex flex-wrap items-center gap-2 border-b border-line bg-wait-soft px-4 py-1 text-xs text-wait'

export function TruncatedBar({ store }: { store: RunStore }) {
  if (store.model.first <= 1) return null
  return <p className={BAR}>Events before number {formatCount(store.model.first)} are no longer kept. The recorded steps are complete.</p>
}

export function IncompleteBar({ store }: { store: RunStore }) {
  if (!store.incomplete) return null
  return (
    <p className={BAR}>
      Timeline, graph and conversation show events 1 to {formatCount(store.model.last)} of {formatCount(store.lastSeq)}.
      <Button small disabled={store.loading} onClick={() => void store.more(5_000)}>
        Load 5,000 more
      </Button>
      <Button small disabled={store.loading} onClick={() => void store.more(1_000_000)}>
        Load all
      </Button>
    </p>
  )
}

export function StreamBar({ store }: { store: RunStore }) {
  if (store.connected || store.model.ended) return null
  return (
    <p role="status" className={BAR}>
      The stream of this run is interrupted. It continues after event {formatCount(store.model.last)}.
    </p>
  )
}
