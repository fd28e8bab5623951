/* The visible rows of a JSON tree. Only opened nodes are walked, so a large value costs what is shown of it. */
import { ExactNumber } from '@/api/json'

export interface JsonRow {
  path: string
  depth: number
  key: string | number | null
  value: unknown
  /** Number of entries of an object or array; null for a leaf. */
  size: number | null
  open: boolean
  /** Set for the row that stands for entries that are not listed yet. */
  hidden?: number
}

const PAGE = 200

export function isContainer(value: unknown): value is Record<string, unknown> | unknown[] {
  return typeof value === 'object' && value !== null && !(value instanceof ExactNumber)
}

export function childPath(path: string, key: string | number): string {
  if (typeof key === 'number') return `${path}[${key}]`
  return /^[A-Za-z_]\w*$/.test(key) ? (path === '' ? key : `${path}.${key}`) : `${path}[${JSON.stringify(key)}]`
}

/** The keys and positions of a path that `childPath` has made. */
export function keysOf(path: string): (string | number)[] {
  return [...path.matchAll(/\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]|([A-Za-z_]\w*)/g)].map(([, index, quoted, name]) => (index !== undefined ? Number(index) : quoted !== undefined ? (JSON.parse(quoted) as string) : name!))
}

function entriesOf(value: Record<string, unknown> | unknown[], sorted: boolean): [string | number, unknown][] {
  if (Array.isArray(value)) return value.map((item, index) => [index, item])
  const entries = Object.entries(value)
  return sorted ? entries.sort(([a], [b]) => a.localeCompare(b)) : entries
}

export interface Shape {
  /** Paths whose state differs from the default. */
  toggled: ReadonlySet<string>
  /** Nodes above this depth are open unless toggled. */
  openDepth: number
  /** How many entries of a node are listed beyond the first page. */
  more: ReadonlyMap<string, number>
  sorted: boolean
}

export function rowsOf(value: unknown, shape: Shape): JsonRow[] {
  const rows: JsonRow[] = []
  const walk = (path: string, key: string | number | null, node: unknown, depth: number) => {
    if (!isContainer(node)) {
      rows.push({ path, depth, key, value: node, size: null, open: false })
      return
    }
    const entries = entriesOf(node, shape.sorted)
    const open = entries.length > 0 && depth < shape.openDepth !== shape.toggled.has(path)
    rows.push({ path, depth, key, value: node, size: entries.length, open })
    if (!open) return
    const shown = PAGE + (shape.more.get(path) ?? 0)
    for (const [name, child] of entries.slice(0, shown)) walk(childPath(path, name), name, child, depth + 1)
    if (entries.length > shown) {
      rows.push({ path, depth: depth + 1, key: null, value: null, size: null, open: false, hidden: entries.length - shown })
    }
  }
  walk('', null, value, 0)
  return rows
}

const SEARCH_LIMIT = 50_000

/** Paths of keys and leaves that contain the text, in order; the search stops at a bound and reports it. */
export function findPaths(value: unknown, text: string, limit = 200): { paths: string[]; complete: boolean } {
  const wanted = text.toLowerCase()
  const paths: string[] = []
  let visited = 0
  const walk = (path: string, node: unknown): boolean => {
    if (++visited > SEARCH_LIMIT || paths.length >= limit) return false
    if (!isContainer(node)) {
      if (String(node).toLowerCase().includes(wanted)) paths.push(path)
      return true
    }
    for (const [key, child] of entriesOf(node, false)) {
      const at = childPath(path, key)
      if (typeof key === 'string' && key.toLowerCase().includes(wanted)) paths.push(at)
      if (!walk(at, child)) return false
    }
    return true
  }
  const complete = walk('', value)
  return { paths: [...new Set(paths)], complete }
}

/** The containers that must be open so that a path is visible. */
export function ancestors(path: string): string[] {
  const found: string[] = ['']
  for (const match of path.matchAll(/\.|\[/g)) if (match.index > 0) found.push(path.slice(0, match.index))
  return found
}
