/* The frame around every page: navigation, top bar, bars about the connection, and what floats above. */
import { type ReactNode, useEffect, useState } from 'react'
import { useLocation } from 'wouter'
import { useConnection } from '@/live/connection'
import { Announcer } from '@/parts/Announcer'
import { cx } from '@/parts/classes'
import { Notices } from '@/parts/Notices'
import { ConnectionBar, OpenServerBar, VersionBar } from './Bars'
import { Help } from './Help'
import { Navigation } from './Navigation'
import { Palette } from './palette/Palette'
import { usePreference } from './preferences'
import { useExpired } from './session'
import { SessionExpired } from './SignIn'
import { useShortcuts } from './shortcuts'
import { TopBar } from './TopBar'

export function Frame({ children }: { children: ReactNode }) {
  const [collapsed, setCollapsed] = usePreference('navigation.collapsed', false)
  const [drawer, setDrawer] = useState(false)
  const [location] = useLocation()
  const { dialog, setDialog } = useShortcuts()
  const expired = useExpired()
  const away = useConnection().away !== null
  useEffect(() => setDrawer(false), [location])
  return (
    <div className="flex h-full">
      <a href="#content" className="sr-only z-50 rounded-md bg-accent px-3 py-2 text-accent-ink focus:not-sr-only focus:absolute focus:top-2 focus:left-2">
        Skip to the content
      </a>
      <Navigation collapsed={collapsed} drawer={drawer} onCollapse={() => setCollapsed(!collapsed)} onClose={() => setDrawer(false)} />
      <div className="flex min-w-0 flex-1 flex-col">
        <TopBar onMenu={() => setDrawer(true)} onPalette={() => setDialog('palette')} onHelp={() => setDialog('help')} />
        <OpenServerBar />
        <ConnectionBar />
        <VersionBar />
        {/* Old data has no colours, so that it does not look current. */}
        <main id="content" tabIndex={-1} data-old={away || undefined} className={cx('min-h-0 flex-1 overflow-y-auto outline-none', away && 'grayscale')}>
          {children}
        </main>
      </div>
      {dialog === 'palette' && <Palette onClose={() => setDialog(null)} />}
      {dialog === 'help' && <Help onClose={() => setDialog(null)} />}
      {expired && <SessionExpired />}
      <Notices />
      <Announcer />
    </div>
  )
}
