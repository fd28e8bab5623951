/* How pages of memory stay live. */
import type { Topic } from '@/api/query'

/** Changes have hints. The slow poll finds those of processes that share only the database. */
export const MEMORY_LIVE: { topics: readonly Topic[]; pollMs: number } = { topics: ['memory'], pollMs: 30_000 }
