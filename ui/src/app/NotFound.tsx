/* Addresses without a page. */
import { SearchX } from 'lucide-react'
import { ButtonLink } from '@/parts/Button'
import { Empty } from '@/parts/Empty'

export function NotFound() {
  return (
    <Empty icon={SearchX} title="This address has no page" actions={<ButtonLink to="/">Overview</ButtonLink>}>
      The link may belong to another version of the dashboard.
    </Empty>
  )
}
