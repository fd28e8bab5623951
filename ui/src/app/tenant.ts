/* The tenant that a platform admin looks at, or null for all. */
import { usePreference } from './preferences'

export function useTenant(): [string | null, (tenant: string | null) => void] {
  return usePreference<string | null>('tenant', null)
}

/** The parameter for lists: absent for all tenants. */
export function useTenantParam(): { tenant?: string } {
  const [tenant] = useTenant()
  return tenant === null ? {} : { tenant }
}
