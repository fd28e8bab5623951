/* A secret that is shown once. */
import { useState } from 'react'
import type { components } from '@/api/schema'
import { Button } from '@/parts/Button'
import { Command } from '@/parts/Copy'
import { Dialog } from '@/parts/Dialog'
import { Check } from '@/parts/form/Field'
import { Time } from '@/parts/Time'

export function ShownOnce({ title, value, onClose, children }: { title: string; value: string; onClose: () => void; children?: React.ReactNode }) {
  const [stored, setStored] = useState(false)
  return (
    <Dialog title={title} onClose={onClose} closable={false} footer={<Button look="main" disabled={!stored} onClick={onClose}>Done</Button>}>
      <div className="flex flex-col gap-3">
        <p>It is shown only now. The dashboard does not show it again.</p>
        <Command text={value} />
        {children}
        <Check label="I have stored it" checked={stored} onChange={(event) => setStored(event.target.checked)} />
      </div>
    </Dialog>
  )
}

export function WebhookSecretDialog({ secret, onClose }: { secret: components['schemas']['WebhookSecret']; onClose: () => void }) {
  return (
    <ShownOnce title={secret.secret === null ? 'The public key of the endpoint' : 'The secret of the endpoint'} value={secret.secret ?? secret.public_key ?? ''} onClose={onClose}>
      <p className="text-soft">Version {secret.version}.{secret.previous_valid_until != null && <> The previous secret is valid until <Time at={secret.previous_valid_until} style="exact" />; until then messages carry both signatures.</>}</p>
    </ShownOnce>
  )
}
