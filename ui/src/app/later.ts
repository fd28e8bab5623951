/* A value that is used once it rests: typing does not send a request for each key. */
import { useEffect, useState } from 'react'

export function useLater<T>(value: T, ms: number): T {
  const [later, setLater] = useState(value)
  const text = JSON.stringify(value)
  useEffect(() => {
    const timer = setTimeout(() => setLater(value), ms)
    return () => clearTimeout(timer)
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [text, ms])
  return later
}
