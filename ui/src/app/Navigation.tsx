/* The list of pages: a column, a column of icons, or a drawer on a narrow screen. */
import { PanelLeftClose, PanelLeftOpen } from 'lucide-react'
import { Link, useLocation } from 'wouter'
import { IconButton } from '@/parts/Button'
import { cx } from '@/parts/classes'
import { useInboxCount } from './inboxCount'
import { allowedItems, type NavigationItem } from './navigation'
import { useSession } from './session'

interface NavigationProps {
  collapsed: boolean
  drawer: boolean
  onCollapse: () => void
  onClose: () => void
}

function Item({ item, narrow, badge }: { item: NavigationItem; narrow: boolean; badge: string | null }) {
  const [location] = useLocation()
  const current = item.path === '/' ? location === '/' : location === item.path || location.startsWith(`${item.path}/`)
  return (
    <Link
      href={item.path}
      aria-current={current ? 'page' : undefined}
      title={narrow ? item.title : undefined}
      className={cx(
        'flex h-7.5 items-center gap-2.5 rounded-md px-2',
        current ? 'bg-accent-soft font-medium text-ink' : 'text-soft hover:bg-hover hover:text-ink',
      )}
    >
      <item.icon size={16} aria-hidden className={cx('shrink-0', current && 'text-accent')} />
      <span className={narrow ? 'sr-only' : 'min-w-0 flex-1 truncate'}>{item.title}</span>
      {badge !== null && (
        <span className={cx('tabular rounded-full bg-person-soft px-1.5 text-2xs font-medium text-person', narrow && 'sr-only')}>{badge}</span>
      )}
    </Link>
  )
}

export function Navigation({ collapsed, drawer, onCollapse, onClose }: NavigationProps) {
  const { may } = useSession()
  const waiting = useInboxCount()
  const narrow = collapsed && !drawer
  return (
    <>
      {drawer && <button type="button" aria-label="Close the navigation" onClick={onClose} className="fixed inset-0 z-30 bg-[var(--scrim)] md:hidden" />}
      <nav
        aria-label="Pages"
        className={cx(
          'shrink-0 flex-col overflow-y-auto border-r border-line bg-surface p-2',
          drawer ? 'fixed inset-y-0 left-0 z-40 flex w-56' : 'hidden md:flex',
          !drawer && (narrow ? 'w-12' : 'w-44'),
        )}
      >
        <Link href="/" className="mb-2 flex h-8 items-center gap-2 px-1.5 text-base font-semibold">
          <img src="./icon.svg" alt="" width={20} height={20} />
          <span className={narrow ? 'sr-only' : undefined}>Runlane</span>
        </Link>
        {allowedItems(may).map((group, index) => (
          <div key={group[0]!.path} className={cx('flex flex-col gap-0.5', index > 0 && 'mt-2 border-t border-line pt-2')}>
            {group.map((item) => (
              <Item key={item.path} item={item} narrow={narrow} badge={item.path === '/inbox' ? waiting : null} />
            ))}
          </div>
        ))}
        <div className="mt-auto hidden pt-2 md:block">
          <IconButton label={narrow ? 'Widen the navigation' : 'Narrow the navigation'} icon={narrow ? PanelLeftOpen : PanelLeftClose} onClick={onCollapse} />
        </div>
      </nav>
    </>
  )
}
