/* A menu button. Arrow keys move, Escape closes and returns the focus, the list lies in the browser's top layer. */
import { ChevronDown, type LucideIcon } from 'lucide-react'
import { type KeyboardEvent, type ReactNode, useEffect, useId, useRef, useState } from 'react'
import { useHold } from '@/live/refresh'
import { Button, IconButton, type Look } from './Button'
import { cx } from './classes'

export interface MenuItem {
  label: ReactNode
  icon?: LucideIcon
  onSelect: () => void
  danger?: boolean
  /** Why it cannot be chosen now. */
  refused?: string | null
  checked?: boolean
}

interface MenuProps {
  label: string
  items: (MenuItem | 'line')[]
  icon?: LucideIcon
  iconOnly?: boolean
  look?: Look
  small?: boolean
  children?: ReactNode
}

function place(list: HTMLElement, anchor: DOMRect): void {
  const size = list.getBoundingClientRect()
  const below = anchor.bottom + 4
  const top = below + size.height > innerHeight - 8 ? Math.max(8, anchor.top - size.height - 4) : below
  const left = Math.max(8, Math.min(anchor.left, innerWidth - size.width - 8))
  list.style.top = `${top}px`
  list.style.left = `${left}px`
}

export function Menu({ label, items, icon, iconOnly = false, look = 'normal', small = false, children }: MenuProps) {
  const [open, setOpen] = useState(false)
  const anchor = useRef<HTMLButtonElement>(null)
  const list = useRef<HTMLDivElement>(null)
  const id = useId()

  // What a menu is about must not change while it is open.
  useHold(open)
  useEffect(() => {
    const element = list.current
    if (!open || element === null || anchor.current === null) return
    element.showPopover()
    place(element, anchor.current.getBoundingClientRect())
    element.querySelector<HTMLElement>('[role^=menuitem]:not([aria-disabled=true])')?.focus()
    const closed = (event: Event) => {
      if ((event as ToggleEvent).newState === 'closed') setOpen(false)
    }
    element.addEventListener('toggle', closed)
    return () => element.removeEventListener('toggle', closed)
  }, [open])

  const close = () => {
    list.current?.hidePopover()
    anchor.current?.focus()
  }
  const move = (event: KeyboardEvent) => {
    const entries = [...(list.current?.querySelectorAll<HTMLElement>('[role^=menuitem]') ?? [])]
    const at = entries.indexOf(document.activeElement as HTMLElement)
    const target = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: entries.length - 1 }[event.key]
    if (event.key === 'Escape' || event.key === 'Tab') close()
    if (target === undefined) return
    event.preventDefault()
    entries[(target + entries.length) % entries.length]?.focus()
  }

  const shared = { ref: anchor, onClick: () => setOpen(!open), 'aria-haspopup': 'menu', 'aria-expanded': open, 'aria-controls': id } as const
  return (
    <>
      {iconOnly && icon !== undefined ? (
        <IconButton label={label} icon={icon} {...shared} />
      ) : (
        <Button look={look} small={small} icon={icon} {...shared}>
          {children ?? label}
          <ChevronDown size={13} aria-hidden className="text-faint" />
        </Button>
      )}
      {open && (
        <div
          ref={list}
          id={id}
          popover="auto"
          role="menu"
          aria-label={label}
          tabIndex={-1}
          onKeyDown={move}
          className="fixed m-0 max-h-[70dvh] min-w-44 overflow-y-auto rounded-md border border-line bg-raised p-1 shadow-float"
        >
          {items.map((item, index) =>
            item === 'line' ? (
              <hr key={`line-${index}`} className="my-1 border-line" />
            ) : (
              <button
                key={index}
                type="button"
                role={item.checked === undefined ? 'menuitem' : 'menuitemcheckbox'}
                aria-checked={item.checked}
                aria-disabled={item.refused !== undefined && item.refused !== null}
                title={item.refused ?? undefined}
                tabIndex={-1}
                onClick={() => {
                  if (item.refused !== undefined && item.refused !== null) return
                  if (item.checked === undefined) close()
                  item.onSelect()
                }}
                className={cx(
                  'flex w-full items-center gap-2 rounded-sm px-2 py-1.5 text-left hover:bg-hover focus:bg-hover aria-disabled:opacity-50',
                  item.danger === true && 'text-bad',
                )}
              >
                {item.checked !== undefined && <input type="checkbox" checked={item.checked} readOnly tabIndex={-1} aria-hidden className="accent-accent" />}
                {item.icon !== undefined && <item.icon size={15} aria-hidden className="text-soft" />}
                <span className="min-w-0 flex-1">{item.label}</span>
              </button>
            ),
          )}
        </div>
      )}
    </>
  )
}
