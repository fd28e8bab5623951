/* Lists that grow while a run is executed: what follows is read at the end of the list, a few times a second at most. */
import { useEffect, useRef } from 'react'

const GAP_MS = 300

interface Pages {
  hasNextPage: boolean
  isFetching: boolean
  isError: boolean
  fetchNextPage: () => unknown
}

/** `wanted`: the reader is at the end of what is loaded, or the list is complete and a run adds to it. */
export function useTail({ hasNextPage, isFetching, isError, fetchNextPage }: Pages, wanted: boolean): void {
  const last = useRef(0)
  useEffect(() => {
    if (!wanted || !hasNextPage || isFetching || isError) return
    const timer = setTimeout(
      () => {
        last.current = Date.now()
        void fetchNextPage()
      },
      Math.max(0, last.current + GAP_MS - Date.now()),
    )
    return () => clearTimeout(timer)
  }, [wanted, hasNextPage, isFetching, isError, fetchNextPage])
}
