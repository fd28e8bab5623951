/* Short messages about what an action did. They stay until they are read: ten seconds, or until closed. */
import { X } from 'lucide-react'
import { type ReactNode, useSyncExternalStore } from 'react'
import { announce } from './Announcer'
import { IconButton } from './Button'
import { cx } from './classes'

interface NoticeEntry {
  id: number
  text: ReactNode
  bad: boolean
}

let entries: NoticeEntry[] = []
let next = 1
const listeners = new Set<() => void>()

function change(update: NoticeEntry[]): void {
  entries = update
  for (const listener of listeners) listener()
}

export function notify(text: ReactNode, { bad = false } = {}): void {
  const id = next++
  change([...entries.slice(-3), { id, text, bad }])
  if (typeof text === 'string') announce(text)
  if (!bad) setTimeout(() => dismiss(id), 10_000)
}

function dismiss(id: number): void {
  change(entries.filter((entry) => entry.id !== id))
}

export function Notices() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    () => entries,
  )
  return (
    <div className="fixed right-3 bottom-3 z-50 flex max-w-[calc(100vw-24px)] flex-col gap-2">
      {shown.map((entry) => (
        <div
          key={entry.id}
          className={cx('flex max-w-[420px] items-start gap-2 rounded-md border bg-raised py-1.5 pr-1 pl-3 shadow-float', entry.bad ? 'border-bad text-bad' : 'border-line')}
        >
          <div className="min-w-0 flex-1 py-1 break-words">{entry.text}</div>
          <IconButton label="Dismiss" icon={X} onClick={() => dismiss(entry.id)} className="size-6" />
        </div>
      ))}
    </div>
  )
}
