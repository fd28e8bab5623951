/* Filters of the inbox. They are in the URL. */
import { Bell, BellRing } from 'lucide-react'
import { useApi } from '@/api/query'
import { type Address } from '@/app/address'
import { noticesRefused, switchNotices, useNotifies } from '@/app/inboxNotices'
import { useTenantParam } from '@/app/tenant'
import { formatCount } from '@/format/number'
import { IconButton } from '@/parts/Button'
import { cx } from '@/parts/classes'
import { Select, TextInput } from '@/parts/form/Field'
import { notify } from '@/parts/Notices'
import { KIND_NAMES, kindText } from './kinds'
import { FURTHER_FILTERS } from './useInbox'

function TextFilter({ address, name, label }: { address: Address; name: string; label: string }) {
  return (
    <TextInput
      key={address.get(name) ?? ''}
      aria-label={label}
      placeholder={label}
      defaultValue={address.get(name) ?? ''}
      className="w-28! flex-1"
      onBlur={(event) => event.target.value !== (address.get(name) ?? '') && address.set({ [name]: event.target.value || null })}
      onKeyDown={(event) => event.key === 'Enter' && address.set({ [name]: event.currentTarget.value || null })}
    />
  )
}

function NoticeSwitch() {
  const on = useNotifies()
  const refused = noticesRefused()
  const label = refused ?? (on ? 'Desktop notifications are on. Switch them off.' : 'Show a desktop notification for each new question')
  const toggle = () => void switchNotices(!on).then((now) => notify(now ? 'New questions show a desktop notification.' : on ? 'Desktop notifications are off.' : 'The browser did not allow notifications.'))
  return <IconButton label={label} icon={on ? BellRing : Bell} aria-pressed={on} disabled={refused !== null} onClick={toggle} className="absolute top-1 right-1" />
}

export function InboxFilters({ address }: { address: Address }) {
  const count = useApi('/api/v2/inbox/count', { query: useTenantParam() }, { topics: ['inbox'] })
  const chosen = address.all('about')
  const toggle = (about: string) => address.set({ about: chosen.includes(about) ? chosen.filter((other) => other !== about) : [...chosen, about] })
  return (
    <div className="relative flex flex-col gap-2 border-b border-line p-2">
      <NoticeSwitch />
      <div role="group" aria-label="Kinds of questions" className="flex flex-wrap gap-1 pr-8">
        {KIND_NAMES.map((about) => {
          const number = count.data?.by_kind[about] ?? 0
          const { word, icon: Icon, meaning } = kindText(about)
          return (
            <button
              key={about}
              type="button"
              aria-pressed={chosen.includes(about)}
              title={meaning}
              onClick={() => toggle(about)}
              className={cx('flex h-6 items-center gap-1 rounded-full border px-2 text-xs', chosen.includes(about) ? 'border-accent bg-accent-soft' : 'border-line-strong hover:bg-hover')}
            >
              <Icon size={12} aria-hidden /> {word} <span className="tabular text-faint">{formatCount(number)}{count.data?.exact === false ? '+' : ''}</span>
            </button>
          )
        })}
      </div>
      <details open={FURTHER_FILTERS.some((name) => address.get(name) !== null)}>
        <summary className="w-fit text-xs text-soft">More filters</summary>
        <div className="mt-1.5 flex flex-wrap gap-1.5">
          <TextFilter address={address} name="target" label="Target" />
          <TextFilter address={address} name="agent" label="Agent" />
          <TextFilter address={address} name="tool" label="Tool" />
          <Select
            aria-label="Age"
            value={address.get('age') ?? ''}
            options={[['', 'Any age'], ['15m', 'Open for 15 minutes'], ['1h', 'Open for 1 hour'], ['24h', 'Open for 1 day'], ['7d', 'Open for 7 days']]}
            onChange={(event) => address.set({ age: event.target.value || null })}
          />
          <Select
            aria-label="Due"
            value={address.get('due') ?? ''}
            options={[['', 'Any due time'], ['1h', 'Due within 1 hour'], ['24h', 'Due within 24 hours'], ['7d', 'Due within 7 days']]}
            onChange={(event) => address.set({ due: event.target.value || null })}
          />
        </div>
      </details>
    </div>
  )
}
