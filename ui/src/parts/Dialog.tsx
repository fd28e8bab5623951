/* Dialogs on the browser's own <dialog>: it traps the focus, closes with Escape and returns the focus. */
import { X } from 'lucide-react'
import { type ReactNode, useEffect, useId, useRef } from 'react'
import { IconButton } from './Button'
import { cx } from './classes'

interface DialogProps {
  title: ReactNode
  onClose: () => void
  children: ReactNode
  /** Buttons, at the end. */
  footer?: ReactNode
  wide?: boolean
  /** A dialog that only an action may close, such as the sign-in over an expired session. */
  closable?: boolean
}

export function Dialog({ title, onClose, children, footer, wide = false, closable = true }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null)
  const heading = useId()
  useEffect(() => {
    const dialog = ref.current
    const before = document.activeElement
    dialog?.showModal()
    dialog?.querySelector<HTMLElement>('[data-autofocus]')?.focus()
    return () => {
      dialog?.close()
      if (before instanceof HTMLElement && before.isConnected) before.focus()
    }
  }, [])
  return (
    <dialog
      ref={ref}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault()
        if (closable) onClose()
      }}
      onMouseDown={(event) => {
        if (closable && event.target === ref.current) onClose()
      }}
      className={cx(
        'm-auto max-h-[calc(100dvh-32px)] w-[calc(100vw-24px)] flex-col overflow-hidden rounded-lg border border-line bg-raised p-0 shadow-float open:flex',
        wide ? 'max-w-[880px]' : 'max-w-[560px]',
      )}
    >
      <header className="flex items-center justify-between gap-4 border-b border-line py-2.5 pr-2 pl-4">
        <h2 id={heading} className="min-w-0 truncate text-base font-semibold">
          {title}
        </h2>
        {closable && <IconButton label="Close" icon={X} onClick={onClose} />}
      </header>
      <div className="min-h-0 flex-1 overflow-y-auto px-4 py-3">{children}</div>
      {footer !== undefined && <footer className="flex flex-wrap items-center justify-end gap-2 border-t border-line px-4 py-2.5">{footer}</footer>}
    </dialog>
  )
}
