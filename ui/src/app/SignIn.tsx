/* Sign in: a key is pasted once. */
import { KeyRound } from 'lucide-react'
import { type FormEvent, useState } from 'react'
import { type ApiError, toApiError } from '@/api/errors'
import { Button } from '@/parts/Button'
import { Command } from '@/parts/Copy'
import { Dialog } from '@/parts/Dialog'
import { Field, TextInput } from '@/parts/form/Field'
import { signIn, signOut } from './session'

function problemOf(error: ApiError): string {
  if (error.status === 401) return 'This key is not valid. Check that it is complete, or create another one.'
  return error.message
}

function SignInForm() {
  const [key, setKey] = useState('')
  const [problem, setProblem] = useState<string | null>(null)
  const [busy, setBusy] = useState(false)
  const submit = async (event: FormEvent) => {
    event.preventDefault()
    setBusy(true)
    setProblem(null)
    try {
      await signIn(key)
    } catch (error) {
      setProblem(problemOf(toApiError(error)))
    } finally {
      setKey('')
      setBusy(false)
    }
  }
  return (
    <form onSubmit={(event) => void submit(event)} className="flex flex-col gap-3">
      <Field label="API key" problem={problem} hint="It is exchanged for a session of this browser and not stored in the page.">
        {(ids) => <TextInput {...ids} type="password" name="key" autoFocus autoComplete="off" data-autofocus placeholder="sk-rl-…" value={key} onChange={(event) => setKey(event.target.value)} />}
      </Field>
      <Button type="submit" look="main" icon={KeyRound} disabled={busy || key === ''}>
        Sign in
      </Button>
    </form>
  )
}

export function SignInPage({ version }: { version?: string }) {
  return (
    <main className="mx-auto flex h-full max-w-[400px] flex-col justify-center gap-4 p-4">
      <h1 className="flex items-center gap-2 text-xl font-semibold">
        <img src="./icon.svg" alt="" width={26} height={26} />
        Runlane
      </h1>
      <div className="rounded-lg border border-line bg-surface p-4">
        <SignInForm />
      </div>
      <details className="text-soft">
        <summary className="w-fit">No key yet</summary>
        <p className="my-2">An administrator creates keys on the server:</p>
        <Command text="runlane keys create NAME --role operator" />
      </details>
      {version !== undefined && <p className="text-xs text-faint">Version {version}</p>}
    </main>
  )
}

/** Over the page after the session ended: the page stays, and continues after the sign-in. */
export function SessionExpired() {
  return (
    <Dialog title="The session has ended" onClose={() => undefined} closable={false}>
      <p className="mb-3 text-soft">The key was revoked, or the session expired. The page continues after you sign in.</p>
      <SignInForm />
      <Button look="quiet" className="mt-2" onClick={() => void signOut()}>
        Close this page instead
      </Button>
    </Dialog>
  )
}
