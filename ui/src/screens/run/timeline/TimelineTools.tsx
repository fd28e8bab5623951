/* The tools of the timeline. */
import { Fullscreen, ZoomIn, ZoomOut } from 'lucide-react'
import { IconButton } from '@/parts/Button'
import { Check } from '@/parts/form/Field'
import type { View } from './useView'

interface TimelineToolsProps {
  view: View
  collapse: boolean
  onCollapse: (on: boolean) => void
  hideDone: boolean
  onHideDone: (on: boolean) => void
  follow: boolean
  onFollow?: (on: boolean) => void
}

export function TimelineTools({ view, collapse, onCollapse, hideDone, onHideDone, follow, onFollow }: TimelineToolsProps) {
  return (
    <div className="flex flex-wrap items-center gap-x-4 gap-y-1 border-b border-line px-3 py-1 text-xs">
      <Check label="Fold idle time" checked={collapse} onChange={(event) => onCollapse(event.target.checked)} />
      <Check label="Fold finished branches" checked={hideDone} onChange={(event) => onHideDone(event.target.checked)} />
      {onFollow !== undefined && <Check label="Follow" checked={follow} onChange={(event) => onFollow(event.target.checked)} />}
      <div className="ml-auto flex">
        <IconButton label="Zoom in (Ctrl and wheel)" icon={ZoomIn} onClick={() => view.zoom(1.6)} />
        <IconButton label="Zoom out" icon={ZoomOut} onClick={() => view.zoom(1 / 1.6)} disabled={!view.zoomed} />
        <IconButton label="Show all" icon={Fullscreen} onClick={view.fit} disabled={!view.zoomed} />
      </div>
    </div>
  )
}
