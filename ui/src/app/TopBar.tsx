/* The bar above every page: search, live switch, time zone, theme, help, account. */
import { CircleHelp, CircleUser, Clock, LogOut, Menu as MenuIcon, Monitor, Moon, Pause, Play, Search, Sun } from 'lucide-react'
import type { Zone } from '@/format/time'
import { setPaused, useConnection } from '@/live/connection'
import { Button, IconButton } from '@/parts/Button'
import { cx } from '@/parts/classes'
import { Menu, type MenuItem } from '@/parts/Menu'
import { useMedia } from './media'
import { usePreference } from './preferences'
import { signOut, useSession } from './session'
import { TenantChooser } from './TenantChooser'
import { type Theme, useTheme } from './theme'

const THEMES: [Theme, string, typeof Sun][] = [
  ['system', 'Like the system', Monitor],
  ['light', 'Light', Sun],
  ['dark', 'Dark', Moon],
]

function LiveSwitch() {
  const { phase, paused, away } = useConnection()
  const word = paused ? 'Paused' : away !== null ? 'Offline' : phase === 'live' ? 'Live' : phase === 'polling' ? 'Every 5 s' : 'Connecting'
  const dot = paused ? 'bg-wait' : away !== null ? 'bg-bad' : phase === 'connecting' ? 'bg-idle' : 'bg-ok'
  const title = paused
    ? 'Updates are switched off. Click to continue.'
    : phase === 'live'
      ? 'Changes appear as they happen. Click to pause.'
      : 'The live stream is not available; the page reads changes every 5 seconds. Click to pause.'
  return (
    <Button look="quiet" small aria-pressed={paused} title={title} onClick={() => setPaused(!paused)} data-live={word}>
      <span aria-hidden className={cx('size-2 rounded-full', dot)} />
      {word}
      {paused ? <Play size={12} aria-hidden /> : <Pause size={12} aria-hidden className="text-faint" />}
    </Button>
  )
}

/** What the bar has no room for on a narrow screen. */
function useNarrowItems(onHelp: () => void): (MenuItem | 'line')[] {
  const narrow = useMedia('(max-width: 599px)')
  const [zone, setZone] = usePreference<Zone>('zone', 'local')
  if (!narrow) return []
  return ['line', { label: 'Times in UTC', icon: Clock, checked: zone === 'utc', onSelect: () => setZone(zone === 'utc' ? 'local' : 'utc') }, { label: 'Keyboard shortcuts', icon: CircleHelp, onSelect: onHelp }]
}

function AccountMenu({ onHelp }: { onHelp: () => void }) {
  const { me, info } = useSession()
  const narrowItems = useNarrowItems(onHelp)
  return (
    <Menu
      label="Account"
      icon={CircleUser}
      iconOnly
      items={[
        {
          label: (
            <span className="flex flex-col">
              <span className="font-medium">{me.name || me.role}</span>
              <span className="text-xs text-faint">
                tenant {me.tenant}, role {me.role}
              </span>
              <span className="text-xs text-faint">server {info.version}</span>
            </span>
          ),
          onSelect: () => undefined,
        },
        ...narrowItems,
        ...(info.sign_in_required ? (['line', { label: 'Sign out', icon: LogOut, onSelect: () => void signOut() }] as const) : []),
      ]}
    />
  )
}

export function TopBar({ onMenu, onPalette, onHelp }: { onMenu: () => void; onPalette: () => void; onHelp: () => void }) {
  const [theme, setTheme] = useTheme()
  const [zone, setZone] = usePreference<Zone>('zone', 'local')
  const ThemeIcon = THEMES.find(([name]) => name === theme)?.[2] ?? Monitor
  return (
    <header className="flex h-11 shrink-0 items-center gap-1 border-b border-line bg-surface px-2">
      <IconButton label="Open the navigation" icon={MenuIcon} onClick={onMenu} className="md:hidden" />
      <button
        type="button"
        onClick={onPalette}
        className="flex h-7.5 max-w-80 min-w-0 flex-1 items-center gap-2 rounded-md border border-line bg-canvas px-2 text-faint hover:border-line-strong"
      >
        <Search size={14} aria-hidden />
        <span className="truncate">Search or paste an id</span>
        <kbd className="ml-auto hidden rounded-sm border border-line px-1 font-sans text-2xs sm:block">Ctrl K</kbd>
      </button>
      <div className="ml-auto flex items-center gap-0.5">
        <TenantChooser />
        <LiveSwitch />
        <Button look="quiet" small icon={Clock} title="Time zone of every time on the page" onClick={() => setZone(zone === 'utc' ? 'local' : 'utc')} className="max-sm:hidden">
          {zone === 'utc' ? 'UTC' : 'Local'}
        </Button>
        <Menu label="Theme" icon={ThemeIcon} iconOnly items={THEMES.map(([name, label, icon]) => ({ label, icon, onSelect: () => setTheme(name) }))} />
        <IconButton label="Keyboard shortcuts" icon={CircleHelp} onClick={onHelp} className="max-sm:hidden" />
        <AccountMenu onHelp={onHelp} />
      </div>
    </header>
  )
}
