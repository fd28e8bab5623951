/* Starts the live layer while a session exists. */
import { useEffect } from 'react'
import { startHints } from './hints'
import { startRefresh } from './refresh'

export function LiveLayer() {
  useEffect(() => {
    const endRefresh = startRefresh()
    const endHints = startHints()
    return () => {
      endHints()
      endRefresh()
    }
  }, [])
  return null
}
