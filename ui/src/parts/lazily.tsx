/* A component whose code is loaded when it is first shown.

React.lazy shows what it has loaded at the earliest 300 ms after its fallback. This one shows it at once, and without
a fallback if the code was loaded ahead. */
import { type ComponentType, useEffect, useState } from 'react'
import { Skeleton } from './Loading'

type Load<P> = () => Promise<{ default: ComponentType<P> }>
export type Lazily<P> = ComponentType<P> & { load: () => Promise<void> }

export function lazily<P extends object>(load: Load<P>, rows = 8): Lazily<P> {
  let Loaded: ComponentType<P> | null = null
  const ahead = async () => {
    Loaded = (await load()).default
  }
  function Lazy(props: P) {
    const [failure, setFailure] = useState<Error | null>(null)
    const [, setShown] = useState(Loaded !== null)
    useEffect(() => {
      if (Loaded !== null) return
      ahead().then(
        () => setShown(true),
        (error: unknown) => setFailure(error instanceof Error ? error : new Error(String(error))),
      )
    }, [])
    // The boundary around it shows the failure, such as code that a new version of the server no longer has.
    if (failure !== null) throw failure
    return Loaded === null ? <Skeleton rows={rows} /> : <Loaded {...props} />
  }
  return Object.assign(Lazy, { load: ahead })
}
