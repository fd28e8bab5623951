/* Saved views: a name for a set of filters, kept for the whole tenant. */
import { Bookmark, Trash2 } from 'lucide-react'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { useApi } from '@/api/query'
import type { components } from '@/api/schema'
import { useSession } from '@/app/session'
import { useTenantParam } from '@/app/tenant'
import { request } from '@/parts/action/action'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { IconButton } from '@/parts/Button'
import { Dialog } from '@/parts/Dialog'
import { Field, TextInput } from '@/parts/form/Field'
import { Menu } from '@/parts/Menu'

type SavedView = components['schemas']['SavedView']

const PAGE = 'runs'
const BUILT_IN = [
  { name: 'Running now', query: 'status=running&window=all' },
  { name: 'Waiting for people', query: 'status=paused&status=awaiting_approval&window=all' },
  { name: 'Failed in 24 hours', query: 'status=failed' },
  { name: 'Queued or blocked', query: 'status=queued&status=blocked&status=scheduled&window=all' },
]

function SaveView({ known, onClose }: { known: SavedView[]; onClose: () => void }) {
  const [name, setName] = useState('')
  const { tenant } = useTenantParam()
  const query = location.search.slice(1)
  const replaced = known.find((view) => view.name === name.trim())
  return (
    <ActionDialog
      onClose={onClose}
      action={{
        id: 'save-view',
        label: 'Save the view',
        icon: Bookmark,
        refused: name.trim() === '' ? 'Enter a name.' : null,
        title: 'Save the filters of this page',
        consequence: replaced === undefined ? 'Every user of the tenant finds the filters under this name.' : `The view of ${replaced.created_by} with this name is replaced.`,
        verb: 'Save the view',
        request: request('put', '/api/v2/views/{page}/{name}', { path: { page: PAGE, name: name.trim() || 'NAME' }, body: { query, ...(tenant === undefined ? {} : { tenant }) } as never }),
        done: 'The view was saved.',
      }}
    >
      <Field label="Name" hint={query === '' ? 'No filter is set.' : query}>
        {(ids) => <TextInput {...ids} data-autofocus maxLength={60} value={name} onChange={(event) => setName(event.target.value)} />}
      </Field>
    </ActionDialog>
  )
}

function DeleteViews({ views, onClose }: { views: SavedView[]; onClose: () => void }) {
  const [chosen, setChosen] = useState<SavedView | null>(null)
  if (chosen !== null) {
    return (
      <ActionDialog
        onClose={onClose}
        action={{
          id: 'delete-view',
          label: 'Delete the view',
          icon: Trash2,
          danger: true,
          title: `Delete the view ${chosen.name}`,
          consequence: 'The view disappears for every user of the tenant. No run changes.',
          verb: 'Delete the view',
          request: request('delete', '/api/v2/views/{page}/{name}', { path: { page: PAGE, name: chosen.name } as never }),
          done: 'The view was deleted.',
        }}
      />
    )
  }
  return (
    <Dialog title="Saved views" onClose={onClose}>
      <ul>
        {views.map((view) => (
          <li key={view.name} className="flex items-center justify-between gap-2">
            <span className="min-w-0 truncate">
              {view.name} <span className="text-xs text-faint">by {view.created_by}</span>
            </span>
            <IconButton label={`Delete the view ${view.name}`} icon={Trash2} onClick={() => setChosen(view)} />
          </li>
        ))}
      </ul>
    </Dialog>
  )
}

export function SavedViews() {
  const { may } = useSession()
  const tenant = useTenantParam()
  const query = useApi('/api/v2/views', { query: { ...tenant, page: PAGE } }, { topics: ['views'] })
  const [open, setOpen] = useState<'save' | 'delete' | null>(null)
  const [, navigate] = useLocation()
  const views = query.data?.views ?? []
  const writes = may('runs:write')
  return (
    <>
      <Menu
        label="Views"
        icon={Bookmark}
        items={[
          ...BUILT_IN.map((view) => ({ label: view.name, onSelect: () => navigate(`/runs?${view.query}`) })),
          ...(views.length > 0 ? (['line'] as const) : []),
          ...views.map((view) => ({ label: view.name, onSelect: () => navigate(`/runs?${view.query}`) })),
          ...(writes ? (['line' as const, { label: 'Save these filters', onSelect: () => setOpen('save') }]) : []),
          ...(writes && views.length > 0 ? [{ label: 'Delete a view', onSelect: () => setOpen('delete') }] : []),
        ]}
      />
      {open === 'save' && <SaveView known={views} onClose={() => setOpen(null)} />}
      {open === 'delete' && <DeleteViews views={views} onClose={() => setOpen(null)} />}
    </>
  )
}
