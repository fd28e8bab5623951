/* Copy to the clipboard, also where the page is served over plain HTTP and the clipboard API is missing. */
import { Check, Copy as CopyIcon } from 'lucide-react'
import { useState } from 'react'
import { announce } from './Announcer'
import { Button, IconButton } from './Button'
import { notify } from './Notices'

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    const area = document.createElement('textarea')
    area.value = text
    area.style.position = 'fixed'
    area.style.opacity = '0'
    const host = document.querySelector('dialog[open]') ?? document.body
    host.append(area)
    area.select()
    const copied = document.execCommand('copy')
    area.remove()
    return copied
  }
}

/** Copy, and report it as a notice: the menu of the entry is closed by then. */
export function copyAndNotify(text: string): void {
  void copyText(text).then((done) => notify(done ? 'Copied.' : 'The browser refused access to the clipboard.', { bad: !done }))
}

function useCopied(text: string | (() => string)): [boolean, () => void] {
  const [copied, setCopied] = useState(false)
  const copy = async () => {
    if (!(await copyText(typeof text === 'string' ? text : text()))) return
    setCopied(true)
    announce('Copied.')
    setTimeout(() => setCopied(false), 1_500)
  }
  return [copied, () => void copy()]
}

export function CopyIconButton({ text, label }: { text: string | (() => string); label: string }) {
  const [copied, copy] = useCopied(text)
  return <IconButton label={copied ? 'Copied' : label} icon={copied ? Check : CopyIcon} onClick={copy} className="size-6" />
}

export function CopyButton({ text, children }: { text: string | (() => string); children: string }) {
  const [copied, copy] = useCopied(text)
  return (
    <Button small icon={copied ? Check : CopyIcon} onClick={copy}>
      {copied ? 'Copied' : children}
    </Button>
  )
}

/** A command with a copy button. */
export function Command({ text }: { text: string }) {
  return (
    <div className="flex min-w-0 items-start gap-1 rounded-md border border-line bg-sunken py-1 pr-1 pl-2.5">
      <code className="min-w-0 flex-1 overflow-x-auto py-1 font-mono text-xs whitespace-pre" tabIndex={0}>
        {text}
      </code>
      <CopyIconButton text={text} label="Copy the command" />
    </div>
  )
}
