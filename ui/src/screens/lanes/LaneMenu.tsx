/* The changes of a lane from its row: pause or enable it, and its settings. */
import { MoreHorizontal, Settings2 } from 'lucide-react'
import { useState } from 'react'
import type { Lane } from '@/api/types'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { FormActionDialog } from '@/parts/action/FormAction'
import { Menu } from '@/parts/Menu'
import { enableAction, SETTINGS, settingsAction, settingsOf } from './laneActions'

export function LaneMenu({ lane }: { lane: Lane }) {
  const [open, setOpen] = useState<'enable' | 'settings' | null>(null)
  const close = () => setOpen(null)
  const enable = enableAction(lane)
  return (
    <>
      <Menu
        label={`Actions of ${lane.name}`}
        icon={MoreHorizontal}
        iconOnly
        items={[
          { label: enable.label, icon: enable.icon, danger: enable.danger, onSelect: () => setOpen('enable') },
          { label: 'Slots and settings', icon: Settings2, onSelect: () => setOpen('settings') },
        ]}
      />
      {open === 'enable' && <ActionDialog action={enable} onClose={close} />}
      {open === 'settings' && <FormActionDialog fields={SETTINGS} initial={settingsOf(lane)} build={(values) => settingsAction(lane, values)} onClose={close} />}
    </>
  )
}
