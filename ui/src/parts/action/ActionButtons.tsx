/* Actions as buttons or as a menu; each opens its dialog. */
import { MoreHorizontal } from 'lucide-react'
import { useState } from 'react'
import { Button } from '../Button'
import { Menu, type MenuItem } from '../Menu'
import type { Action } from './action'
import { ActionDialog } from './ActionDialog'

export function ActionButton({ action, small }: { action: Action; small?: boolean }) {
  const [open, setOpen] = useState(false)
  return (
    <>
      <Button look={action.danger === true ? 'danger' : 'normal'} icon={action.icon} small={small} refused={action.refused} onClick={() => setOpen(true)}>
        {action.label}
      </Button>
      {open && <ActionDialog action={action} onClose={() => setOpen(false)} />}
    </>
  )
}

/** `more` are entries that change nothing, such as copying a link. */
export function ActionMenu({ label, actions, more = [] }: { label: string; actions: Action[]; more?: MenuItem[] }) {
  const [chosen, setChosen] = useState<Action | null>(null)
  return (
    <>
      <Menu
        label={label}
        icon={MoreHorizontal}
        iconOnly
        items={[
          ...actions.map((action) => ({ label: action.label, icon: action.icon, danger: action.danger, refused: action.refused, onSelect: () => setChosen(action) })),
          ...(actions.length > 0 && more.length > 0 ? (['line'] as const) : []),
          ...more,
        ]}
      />
      {chosen !== null && <ActionDialog action={chosen} onClose={() => setChosen(null)} />}
    </>
  )
}
