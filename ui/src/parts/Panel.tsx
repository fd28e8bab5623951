/* Surfaces, headings and definition lists. */
import type { ReactNode } from 'react'
import { cx } from './classes'
import { ErrorBoundary } from './ErrorBoundary'

export function Panel({ title, actions, children, flush = false, className }: { title?: ReactNode; actions?: ReactNode; children: ReactNode; flush?: boolean; className?: string }) {
  return (
    <section className={cx('min-w-0 rounded-lg border border-line bg-surface', className)}>
      {title !== undefined && (
        <header className="flex min-h-10 flex-wrap items-center justify-between gap-2 border-b border-line px-3 py-1.5">
          <h2 className="font-semibold">{title}</h2>
          {actions}
        </header>
      )}
      <div className={flush ? undefined : 'p-3'}>
        <ErrorBoundary name={typeof title === 'string' ? title : 'This panel'}>{children}</ErrorBoundary>
      </div>
    </section>
  )
}

export function PageHeader({ title, children, note }: { title: ReactNode; note?: ReactNode; children?: ReactNode }) {
  return (
    <header className="flex flex-wrap items-center justify-between gap-x-4 gap-y-2">
      <div className="min-w-0">
        <h1 className="text-lg font-semibold">{title}</h1>
        {note !== undefined && <p className="text-soft">{note}</p>}
      </div>
      {children !== undefined && <div className="flex flex-wrap items-center gap-2">{children}</div>}
    </header>
  )
}

/** Pairs of a term and its value, as many columns as there is room for. */
export function Facts({ items }: { items: [string, ReactNode][] }) {
  return (
    <dl className="grid grid-cols-[repeat(auto-fill,minmax(128px,1fr))] gap-x-4 gap-y-2">
      {items.map(([term, value]) => (
        <div key={term} className="min-w-0">
          <dt className="text-2xs text-faint">{term}</dt>
          <dd className="min-w-0 truncate">{value}</dd>
        </div>
      ))}
    </dl>
  )
}

/** The page itself scrolls here, so that the frame stays. */
export function Page({ children, fill = false }: { children: ReactNode; fill?: boolean }) {
  return (
    <div className={cx('mx-auto flex w-full flex-col gap-3 p-3 md:p-4', fill ? 'h-full min-h-0' : 'max-w-[1800px]')}>{children}</div>
  )
}
