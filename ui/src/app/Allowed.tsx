/* A link to a page that the key may not use names the permission that is missing. */
import { Lock } from 'lucide-react'
import type { ReactNode } from 'react'
import { Empty } from '@/parts/Empty'
import { useSession } from './session'

export function Allowed({ needs, children }: { needs: string[]; children: ReactNode }) {
  const { may, me } = useSession()
  if (needs.length === 0 || needs.some(may)) return children
  return (
    <Empty icon={Lock} title={`This page needs the permission ${needs.join(' or ')}`}>
      The role {me.role} of your key does not have it. Sign in with another key, or have an administrator change the role.
    </Empty>
  )
}
