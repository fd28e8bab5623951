/* The shortcuts of every page. */
import { Dialog } from '@/parts/Dialog'
import { allowedItems } from './navigation'
import { useSession } from './session'

const GENERAL: [string, string][] = [
  ['Ctrl K', 'search, open an id, run an action'],
  ['?', 'this list'],
  ['j  k', 'next and previous row'],
  ['Enter', 'open the row'],
  ['x', 'select the row'],
  ['f', 'next failure, on the timeline of a run'],
  ['←  →', 'fold and unfold, on the timeline of a run'],
  ['Esc', 'close a dialog or the inspector'],
]

function Keys({ items }: { items: [string, string][] }) {
  return (
    <dl className="grid grid-cols-[90px_1fr] gap-x-3 gap-y-1.5">
      {items.map(([keys, meaning]) => (
        <div key={keys} className="contents">
          <dt>
            {keys.split('  ').map((key) => (
              <kbd key={key} className="mr-1 rounded-sm border border-line-strong bg-sunken px-1.5 font-sans text-xs">
                {key}
              </kbd>
            ))}
          </dt>
          <dd className="text-soft">{meaning}</dd>
        </div>
      ))}
    </dl>
  )
}

export function Help({ onClose }: { onClose: () => void }) {
  const { may } = useSession()
  const pages = allowedItems(may)
    .flat()
    .flatMap((item): [string, string][] => (item.key === undefined ? [] : [[`g ${item.key}`, item.title]]))
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <div className="grid gap-6 sm:grid-cols-2">
        <Keys items={GENERAL} />
        <Keys items={pages} />
      </div>
    </Dialog>
  )
}
