/* Every change asks once, shows its exact consequence first, and can be copied as a command instead. */
import { useMutation } from '@tanstack/react-query'
import { type ReactNode, useState } from 'react'
import { type ApiError, toApiError } from '@/api/errors'
import { queryClient, withdraw } from '@/api/query'
import { asCurl } from '@/format/command'
import { useConnection } from '@/live/connection'
import { Button } from '../Button'
import { Command, CopyButton } from '../Copy'
import { Dialog } from '../Dialog'
import { Field, TextInput } from '../form/Field'
import { ErrorNote } from '../Loading'
import { notify } from '../Notices'
import { type Action, type ActionRequest, perform } from './action'
import { useChangeKey } from './changeKey'

/** The request as commands. The key is never part of them. */
export function RequestCommands({ request }: { request: ActionRequest }) {
  const curl = asCurl(request.method, request.path, request.shownBody ?? request.body)
  return (
    <details className="mt-3 text-xs text-soft">
      <summary className="w-fit rounded-sm select-none">As a command</summary>
      <div className="mt-1.5 flex flex-col gap-1.5">
        {request.cli !== undefined && <Command text={request.cli} />}
        <Command text={curl} />
      </div>
    </details>
  )
}

interface ActionDialogProps {
  action: Action
  onClose: () => void
  /** Inputs that change the action. */
  children?: ReactNode
  /** Receives the error instead of the dialog, to show it at the fields. */
  onError?: (error: ApiError | null) => void
  wide?: boolean
}

export function ActionDialog({ action, onClose, children, onError, wide }: ActionDialogProps) {
  const [typed, setTyped] = useState('')
  const keyOf = useChangeKey()
  const away = useConnection().away
  const mutation = useMutation<unknown, ApiError, () => void>({
    mutationFn: () => perform(action.request, keyOf(action.request)).catch((error: unknown) => Promise.reject(toApiError(error))),
    onSuccess: (response, restore) => {
      notify(typeof action.done === 'string' ? action.done : action.done(response))
      onClose()
      action.after?.(response)
      // A page that `after` has left is unmounted by then.
      setTimeout(() => {
        restore()
        void queryClient.invalidateQueries()
      })
    },
    onError: (error, restore) => {
      restore()
      onError?.(error)
    },
  })
  const ready = action.typed === undefined || typed === action.typed
  const refused = away !== null ? `Not connected since ${away}.` : (action.refused ?? null)
  const submit = () => {
    if (ready && refused === null && !mutation.isPending) mutation.mutate(action.request.method === 'delete' ? withdraw(action.request.path) : () => undefined)
  }
  return (
    <Dialog
      title={action.title}
      onClose={onClose}
      wide={wide}
      footer={
        <>
          <Button onClick={onClose}>Close</Button>
          <Button look={action.danger === true ? 'danger' : 'main'} icon={action.icon} disabled={!ready || mutation.isPending} refused={refused} onClick={submit} data-autofocus={children === undefined && action.typed === undefined ? true : undefined}>
            {action.verb}
          </Button>
        </>
      }
    >
      <form
        onSubmit={(event) => {
          event.preventDefault()
          submit()
        }}
        className="flex flex-col gap-3"
      >
        {children}
        <div className="text-soft">{action.consequence}</div>
        {action.typed !== undefined && (
          <Field label={`Type ${action.typed} to confirm`}>
            {(ids) => <TextInput {...ids} value={typed} data-autofocus onChange={(event) => setTyped(event.target.value)} />}
          </Field>
        )}
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
      {mutation.error !== null && (onError === undefined || mutation.error.fields.length === 0) && (
        <div className="-mx-3">
          <ErrorNote error={mutation.error} />
        </div>
      )}
      <RequestCommands request={action.request} />
    </Dialog>
  )
}

/** Copy a request without opening a dialog. */
export function CopyRequest({ request }: { request: ActionRequest }) {
  return (
    <span className="flex gap-1">
      <CopyButton text={asCurl(request.method, request.path, request.body)}>curl</CopyButton>
      {request.cli !== undefined && <CopyButton text={request.cli}>CLI</CopyButton>}
    </span>
  )
}
