/* Empty states teach: what the thing is, why there is none, and what makes one. */
import type { LucideIcon } from 'lucide-react'
import type { ReactNode } from 'react'
import { Command } from './Copy'

export function Empty({ icon: Icon, title, children, command, actions }: { icon?: LucideIcon; title: string; children?: ReactNode; command?: string; actions?: ReactNode }) {
  return (
    <div className="mx-auto flex w-full max-w-[560px] min-w-0 flex-col items-center gap-2 px-4 py-10 text-center">
      {Icon !== undefined && <Icon size={28} strokeWidth={1.4} aria-hidden className="text-faint" />}
      <p className="text-base font-medium">{title}</p>
      {children !== undefined && <div className="text-soft">{children}</div>}
      {command !== undefined && (
        <div className="mt-1 w-full min-w-0 text-left">
          <Command text={command} />
        </div>
      )}
      {actions !== undefined && <div className="mt-1 flex flex-wrap justify-center gap-2">{actions}</div>}
    </div>
  )
}
