/* Roles as a matrix of permissions. */
import { Check as CheckIcon, Pencil, Plus, Trash2 } from 'lucide-react'
import { useState } from 'react'
import { useApi } from '@/api/query'
import { useSession } from '@/app/session'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { Button, IconButton } from '@/parts/Button'
import { Check, Field, TextInput } from '@/parts/form/Field'
import { Loaded } from '@/parts/Loading'
import { Panel } from '@/parts/Panel'
import { deleteRoleAction, type Role, saveRoleAction } from './accessActions'

function RoleDialog({ role, permissions, onClose }: { role: Role | null; permissions: string[]; onClose: () => void }) {
  const [name, setName] = useState(role?.name ?? '')
  const [chosen, setChosen] = useState<string[]>(role?.permissions ?? [])
  return (
    <ActionDialog action={saveRoleAction(name, chosen, role !== null)} onClose={onClose}>
      {role === null && <Field label="Name" required>{(ids) => <TextInput {...ids} data-autofocus value={name} onChange={(event) => setName(event.target.value)} />}</Field>}
      <fieldset className="grid sm:grid-cols-2"><legend className="mb-1 font-medium">Permissions</legend>{permissions.map((permission) => <Check key={permission} label={permission} checked={chosen.includes(permission)} onChange={(event) => setChosen(event.target.checked ? [...chosen, permission].sort() : chosen.filter((other) => other !== permission))} />)}</fieldset>
    </ActionDialog>
  )
}

export function Roles() {
  const { may, platformAdmin } = useSession()
  const query = useApi('/api/v2/roles', {}, { topics: ['access'] })
  const [editing, setEditing] = useState<Role | 'new' | null>(null)
  const [deleting, setDeleting] = useState<Role | null>(null)
  const writes = may('keys:manage') && platformAdmin
  return (
    <Panel title="Roles" flush actions={writes && <Button small icon={Plus} onClick={() => setEditing('new')}>New role</Button>}>
      <Loaded query={query}>
        {({ roles }) => {
          const permissions = [...new Set(roles.flatMap((role) => role.permissions))].sort()
          return (
            <div className="overflow-x-auto" tabIndex={0} role="region" aria-label="Permissions of roles">
              <table className="text-left">
                <thead><tr className="border-b border-line"><th scope="col" className="px-3 py-2 text-2xs font-medium text-faint">Permission</th>{roles.map((role) => <th key={role.name} scope="col" className="px-3 py-2 text-center font-medium whitespace-nowrap">{role.name}{!role.built_in && writes && <span className="ml-1 inline-flex"><IconButton label={`Change ${role.name}`} icon={Pencil} onClick={() => setEditing(role)} /><IconButton label={`Delete ${role.name}`} icon={Trash2} onClick={() => setDeleting(role)} /></span>}</th>)}</tr></thead>
                <tbody>{permissions.map((permission) => <tr key={permission} className="border-b border-line"><th scope="row" className="px-3 py-1.5 font-mono text-xs font-normal">{permission}</th>{roles.map((role) => <td key={role.name} className="px-3 py-1.5 text-center">{role.permissions.includes(permission) ? <CheckIcon size={15} role="img" aria-label="yes" className="inline text-ok" /> : <span className="sr-only">no</span>}</td>)}</tr>)}</tbody>
              </table>
              {editing !== null && <RoleDialog role={editing === 'new' ? null : editing} permissions={permissions} onClose={() => setEditing(null)} />}
              {deleting !== null && <ActionDialog action={deleteRoleAction(deleting)} onClose={() => setDeleting(null)} />}
            </div>
          )
        }}
      </Loaded>
    </Panel>
  )
}
