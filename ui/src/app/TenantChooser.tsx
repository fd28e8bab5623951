/* Platform admins look at one tenant or at all of them. The server separates tenants; this only chooses a filter. */
import { Building2 } from 'lucide-react'
import { useApi } from '@/api/query'
import { Menu } from '@/parts/Menu'
import { useSession } from './session'
import { useTenant } from './tenant'

function Chooser() {
  const [tenant, setTenant] = useTenant()
  const tenants = useApi('/api/v2/tenants', {}, { topics: ['access'], staleMs: 60_000 })
  const names = (tenants.data?.tenants ?? []).map((entry) => entry.id)
  // A tenant that was deleted after it was chosen must be left.
  if (names.length < 2 && tenant === null) return null
  return (
    <Menu
      label="Tenant"
      icon={Building2}
      look="quiet"
      small
      items={[{ label: 'All tenants', onSelect: () => setTenant(null) }, 'line', ...names.map((name) => ({ label: name, onSelect: () => setTenant(name) }))]}
    >
      {tenant ?? 'All tenants'}
    </Menu>
  )
}

export function TenantChooser() {
  const { platformAdmin, may } = useSession()
  return platformAdmin && may('keys:manage') ? <Chooser /> : null
}
