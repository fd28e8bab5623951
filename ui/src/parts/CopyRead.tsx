/* What a page reads, as commands. */
import { Terminal } from 'lucide-react'
import { asCurl } from '@/format/command'
import { copyAndNotify } from './Copy'
import { Menu } from './Menu'

export function CopyRead({ path, cli }: { path: string; cli?: string }) {
  return (
    <span className="max-sm:hidden">
      <Menu
        label="Copy as a command"
        icon={Terminal}
        iconOnly
        items={[...(cli === undefined ? [] : [{ label: 'Copy as CLI command', onSelect: () => copyAndNotify(cli) }]), { label: 'Copy as curl', onSelect: () => copyAndNotify(asCurl('get', path)) }]}
      />
    </span>
  )
}
