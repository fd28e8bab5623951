/* Bars between the top bar and the page: they state what a reader must not overlook. */
import { RefreshCw } from 'lucide-react'
import { repair, useConnection } from '@/live/connection'
import { Button } from '@/parts/Button'
import { useSession } from './session'

declare const __RUNLANE_VERSION__: string

/** The version that this page was built from. */
export const PAGE_VERSION = __RUNLANE_VERSION__

export function OpenServerBar() {
  const { info } = useSession()
  if (info.sign_in_required) return null
  return (
    <p className="shrink-0 border-b border-line bg-wait-soft px-3 py-0.5 text-xs text-wait">
      Open on this machine only, without keys.
    </p>
  )
}

export function ConnectionBar() {
  const { away, lastAnswer } = useConnection()
  if (away === null) return null
  return (
    <div role="alert" className="flex shrink-0 flex-wrap items-center gap-x-3 border-b border-line bg-bad-soft px-3 py-1 text-bad">
      <span className="font-medium">Not connected since {away}.</span>
      <span>The page shows data from {lastAnswer} and continues by itself.</span>
      <Button small icon={RefreshCw} onClick={repair}>
        Try now
      </Button>
    </div>
  )
}

export function VersionBar() {
  const { info } = useSession()
  if (info.version === PAGE_VERSION) return null
  return (
    <p className="flex shrink-0 items-center gap-2 border-b border-line bg-accent-soft px-3 py-0.5 text-xs">
      The server has version {info.version}, this page {PAGE_VERSION}.
      <Button small onClick={() => location.reload()}>
        Reload
      </Button>
    </p>
  )
}
