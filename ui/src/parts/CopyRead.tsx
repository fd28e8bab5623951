/* What a page reads, as commands. */
import { Terminal } from 'lucide-react'
import { asCurl } from '@/format/command'
import { copyText } from './Copy'
import { Menu } from './Menu'
import { notify } from './Notices'

export function CopyRead({ path, cli }: { path: string; cli?: string }) {
  const copy = (text: string) => void copyText(text).then((done) => notify(done ? 'Copied.' : 'The browser refused access to the clipboard.', { bad: !done }))
  return (
    <span className="max-sm:hidden">
      <Menu
        label="Copy as a command"
        icon={Terminal}
        iconOnly
        items={[...(cli === undefined ? [] : [{ label: 'Copy as CLI command', onSelect: () => copy(cli) }]), { label: 'Copy as curl', onSelect: () => copy(asCurl('get', path)) }]}
      />
    </span>
  )
}
