/* The tenant that a platform admin looks at, or null for all. */
import { usePreference } from './preferences'
import { useSession } from './session'

/** The choice stays in the browser. A key of one tenant that signs in later has none: it would be refused everything. */
export function useTenant(): [string | null, (tenant: string | null) => void] {
  const { platformAdmin } = useSession()
  const [tenant, choose] = usePreference<string | null>('tenant', null)
  return [platformAdmin ? tenant : null, choose]
}

/** The parameter for lists: absent for all tenants. */
export function useTenantParam(): { tenant?: string } {
  const [tenant] = useTenant()
  return tenant === null ? {} : { tenant }
}
