/* The model of the run on this page. */
import { useEffect, useState, useSyncExternalStore } from 'react'
import { isEnded } from '@/text/status'
import { RunStore } from './store'

export function useRunModel(runId: string, status: string | undefined, lastSeq: number): RunStore {
  const [store, setStore] = useState(() => new RunStore(runId, lastSeq))
  if (store.runId !== runId) setStore(new RunStore(runId, lastSeq))
  useEffect(() => {
    void store.start()
    return () => store.stop()
  }, [store])
  const revived = status !== undefined && !isEnded(status) && store.model.ended
  useEffect(() => {
    if (revived) store.follow()
  }, [revived, store])
  useSyncExternalStore(store.subscribe, store.snapshot)
  return store
}
