/* The input of a conversation: Enter sends, Shift+Enter is a new line, a failure keeps the text. */
import { SendHorizontal } from 'lucide-react'
import { type KeyboardEvent, useState } from 'react'
import type { components } from '@/api/schema'
import { useConnection } from '@/live/connection'
import { RequestCommands } from '@/parts/action/ActionDialog'
import { Button } from '@/parts/Button'
import { TextArea } from '@/parts/form/Field'
import { ErrorNote } from '@/parts/Loading'
import { messageRequest, useSend } from './useSend'

interface ComposerProps {
  agent: string
  sessionId: string | null
  refused?: string | null
  onSent: (sent: components['schemas']['ChatLinks']) => void
}

export function Composer({ agent, sessionId, refused = null, onSent }: ComposerProps) {
  const [text, setText] = useState('')
  const away = useConnection().away
  const send = useSend(agent, sessionId, (sent) => {
    setText('')
    onSent(sent)
  })
  const reason = away !== null ? `Not connected since ${away}.` : refused
  const submit = () => {
    if (text.trim() !== '' && reason === null && !send.isPending) send.mutate(text)
  }
  const onKeyDown = (event: KeyboardEvent) => {
    // A key that ends the composition of a character is not a command.
    if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return
    event.preventDefault()
    submit()
  }
  return (
    <div className="border-t border-line bg-surface p-3">
      {send.error !== null && <div className="-mx-3 -mt-3"><ErrorNote error={send.error} onRetry={submit} /></div>}
      <form
        className="mx-auto flex max-w-[860px] items-end gap-2"
        onSubmit={(event) => {
          event.preventDefault()
          submit()
        }}
      >
        <TextArea autoFocus aria-label="Message" placeholder="Message. Enter sends, Shift+Enter is a new line." rows={Math.min(8, Math.max(2, text.split('\n').length))} value={text} onChange={(event) => setText(event.target.value)} onKeyDown={onKeyDown} className="resize-none" />
        <Button look="main" icon={SendHorizontal} type="submit" disabled={text.trim() === '' || send.isPending} refused={reason}>
          Send
        </Button>
      </form>
      <div className="mx-auto max-w-[860px]">
        <RequestCommands request={messageRequest(agent, sessionId, text === '' ? 'MESSAGE' : text)} />
      </div>
    </div>
  )
}
