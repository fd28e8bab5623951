/* Who may do what: keys, roles, tenants, browser sessions, and what was changed. */
import { useAddress } from '@/app/address'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { CopyRead } from '@/parts/CopyRead'
import { Page, PageHeader } from '@/parts/Panel'
import { Tabs } from '@/parts/Tabs'
import { Audit } from './Audit'
import { Keys } from './Keys'
import { Roles } from './Roles'
import { Sessions } from './Sessions'
import { Tenants } from './Tenants'

const READS: Record<string, [string, string]> = { keys: ['/api/v2/keys', asCli('keys', 'list')], roles: ['/api/v2/roles', asCli('roles', 'list')], tenants: ['/api/v2/tenants', asCli('tenants', 'list')], audit: ['/api/v2/audit', asCli('audit', 'list')] }

export default function AccessPage() {
  useTitle('Access')
  const address = useAddress()
  const { may, platformAdmin } = useSession()
  const manage = may('keys:manage')
  const tabs = [...(manage ? [{ id: 'keys', label: 'Keys' }, { id: 'roles', label: 'Roles' }, { id: 'sessions', label: 'Sessions' }] : []), ...(platformAdmin ? [{ id: 'tenants', label: 'Tenants' }] : []), ...(may('audit:read') ? [{ id: 'audit', label: 'Audit log' }] : [])]
  const tab = address.get('tab') ?? tabs[0]?.id ?? ''
  const read = READS[tab]
  return (
    <Page>
      <PageHeader title="Access" note="Keys, roles and tenants, and the record of every administrative change.">{read !== undefined && <CopyRead path={read[0]} cli={read[1]} />}</PageHeader>
      <Tabs label="Parts of access" selected={tab} link={(id) => address.link({ tab: id })} tabs={tabs} />
      {tab === 'keys' && manage && <Keys />}
      {tab === 'roles' && manage && <Roles />}
      {tab === 'sessions' && manage && <Sessions />}
      {tab === 'tenants' && platformAdmin && <Tenants />}
      {tab === 'audit' && may('audit:read') && <Audit address={address} />}
    </Page>
  )
}
