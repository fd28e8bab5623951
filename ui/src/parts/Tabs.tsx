/* Tabs are links: the selected one is in the URL. */
import { Link } from 'wouter'
import { cx } from './classes'

export interface Tab {
  id: string
  label: string
  count?: number | string | null
}

export function Tabs({ label, tabs, selected, link }: { label: string; tabs: Tab[]; selected: string; link: (id: string) => string }) {
  return (
    <nav aria-label={label} className="flex gap-1 overflow-x-auto border-b border-line">
      {tabs.map((tab) => (
        <Link
          key={tab.id}
          href={link(tab.id)}
          aria-current={tab.id === selected ? 'page' : undefined}
          className={cx(
            '-mb-px flex items-center gap-1.5 border-b-2 px-2.5 py-1.5 whitespace-nowrap',
            tab.id === selected ? 'border-accent font-medium text-ink' : 'border-transparent text-soft hover:text-ink',
          )}
        >
          {tab.label}
          {tab.count !== undefined && tab.count !== null && tab.count !== 0 && (
            <span className="tabular rounded-full bg-sunken px-1.5 text-2xs text-soft">{tab.count}</span>
          )}
        </Link>
      ))}
    </nav>
  )
}
