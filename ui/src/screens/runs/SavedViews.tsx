/* Saved views: a name for a set of filters, kept in this browser. */
import { Bookmark, Trash2 } from 'lucide-react'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { usePreference } from '@/app/preferences'
import { Button, IconButton } from '@/parts/Button'
import { Dialog } from '@/parts/Dialog'
import { Field, TextInput } from '@/parts/form/Field'
import { Menu } from '@/parts/Menu'

interface SavedView {
  name: string
  search: string
}

const BUILT_IN: SavedView[] = [
  { name: 'Running now', search: '?status=running&window=all' },
  { name: 'Waiting for people', search: '?status=paused&status=awaiting_approval&window=all' },
  { name: 'Failed in 24 hours', search: '?status=failed' },
  { name: 'Queued or blocked', search: '?status=queued&status=blocked&status=scheduled&window=all' },
]
const LIMIT = 50

function SaveView({ views, onSave, onClose }: { views: SavedView[]; onSave: (views: SavedView[]) => void; onClose: () => void }) {
  const [name, setName] = useState('')
  const save = () => {
    if (name.trim() === '') return
    onSave([...views.filter((view) => view.name !== name.trim()), { name: name.trim(), search: location.search }].slice(-LIMIT))
    onClose()
  }
  return (
    <Dialog title="Saved views" onClose={onClose} footer={<Button look="main" disabled={name.trim() === ''} onClick={save}>Save this view</Button>}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          save()
        }}
      >
        <Field label="Name" hint="The filters of the page are saved under this name, in this browser.">
          {(ids) => <TextInput {...ids} data-autofocus maxLength={60} value={name} onChange={(event) => setName(event.target.value)} />}
        </Field>
      </form>
      <ul className="mt-3">
        {views.map((view) => (
          <li key={view.name} className="flex items-center justify-between gap-2">
            <span className="truncate">{view.name}</span>
            <IconButton label={`Delete the view ${view.name}`} icon={Trash2} onClick={() => onSave(views.filter((other) => other !== view))} />
          </li>
        ))}
      </ul>
    </Dialog>
  )
}

export function SavedViews() {
  const [views, setViews] = usePreference<SavedView[]>('views.runs', [])
  const [saving, setSaving] = useState(false)
  const [, navigate] = useLocation()
  const open = (view: SavedView) => navigate(`/runs${view.search}`)
  return (
    <>
      <Menu
        label="Views"
        icon={Bookmark}
        items={[
          ...BUILT_IN.map((view) => ({ label: view.name, onSelect: () => open(view) })),
          ...(views.length > 0 ? (['line'] as const) : []),
          ...views.map((view) => ({ label: view.name, onSelect: () => open(view) })),
          'line' as const,
          { label: 'Save or delete a view', onSelect: () => setSaving(true) },
        ]}
      />
      {saving && <SaveView views={views} onSave={setViews} onClose={() => setSaving(false)} />}
    </>
  )
}
