/* The slow statements that serving processes have reported, the slowest first. */

export interface SlowStatement {
  server: string
  name: string
  seconds: number
  count: number
  at: string
}

/** How many are listed. */
const SHOWN = 10

export function slowStatements(servers: readonly { id: string; figures: Record<string, unknown> }[]): SlowStatement[] {
  const found = servers.flatMap(({ id, figures }) =>
    // Servers of an earlier version report none.
    (Array.isArray(figures.slow_statements) ? (figures.slow_statements as Omit<SlowStatement, 'server'>[]) : []).map((one) => ({ ...one, server: id })),
  )
  return found.sort((a, b) => b.seconds - a.seconds).slice(0, SHOWN)
}
