/* Which columns a table shows, and their order. */
import { ArrowLeft, ArrowRight, Columns3 } from 'lucide-react'
import { useState } from 'react'
import { Button, IconButton } from '../Button'
import { Dialog } from '../Dialog'
import { type Column, useColumns } from './columns'

export function ColumnMenu<Row>({ name, columns }: { name: string; columns: Column<Row>[] }) {
  const [open, setOpen] = useState(false)
  const model = useColumns(name, columns)
  const hidden = columns.filter((column) => !model.shown.includes(column))
  return (
    <>
      <IconButton label="Columns" icon={Columns3} onClick={() => setOpen(true)} />
      {open && (
        <Dialog title="Columns" onClose={() => setOpen(false)} footer={<Button onClick={model.reset}>Reset</Button>}>
          <ul className="flex flex-col">
            {[...model.shown, ...hidden].map((column) => (
              <li key={column.id} className="flex h-8 items-center gap-2">
                <label className="flex flex-1 items-center gap-2">
                  <input type="checkbox" checked={model.shown.includes(column)} disabled={column.fixed === true} onChange={() => model.toggle(column.id)} className="size-4 accent-accent" />
                  {column.title}
                </label>
                {model.shown.includes(column) && (
                  <>
                    <IconButton label={`Move ${column.title} to the left`} icon={ArrowLeft} onClick={() => model.move(column.id, -1)} />
                    <IconButton label={`Move ${column.title} to the right`} icon={ArrowRight} onClick={() => model.move(column.id, 1)} />
                  </>
                )}
              </li>
            ))}
          </ul>
        </Dialog>
      )}
    </>
  )
}
