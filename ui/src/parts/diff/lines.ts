/* A line diff: the shortest edit script (Myers), bounded so that two unrelated strings do not stop the page. */

export interface DiffLine {
  kind: 'same' | 'removed' | 'added'
  text: string
}

const MAX_EDITS = 1_500

function backtrack(a: string[], b: string[], trace: Int32Array[], offset: number): DiffLine[] {
  const lines: DiffLine[] = []
  let x = a.length
  let y = b.length
  for (let d = trace.length - 1; d >= 0; d--) {
    const v = trace[d]!
    const k = x - y
    const down = k === -d || (k !== d && v[offset + k - 1]! < v[offset + k + 1]!)
    const previousK = down ? k + 1 : k - 1
    const previousX = v[offset + previousK]!
    const previousY = previousX - previousK
    while (x > previousX && y > previousY) {
      lines.push({ kind: 'same', text: a[--x]! })
      y--
    }
    if (d > 0) {
      if (down) lines.push({ kind: 'added', text: b[--y]! })
      else lines.push({ kind: 'removed', text: a[--x]! })
    }
  }
  return lines.reverse()
}

export function diffLines(before: string, after: string): DiffLine[] {
  const a = before === '' ? [] : before.split('\n')
  const b = after === '' ? [] : after.split('\n')
  const max = Math.min(a.length + b.length, MAX_EDITS)
  const offset = max + 1
  const v = new Int32Array(2 * max + 3)
  const trace: Int32Array[] = []
  for (let d = 0; d <= max; d++) {
    trace.push(v.slice())
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && v[offset + k - 1]! < v[offset + k + 1]!)
      let x = down ? v[offset + k + 1]! : v[offset + k - 1]! + 1
      let y = x - k
      while (x < a.length && y < b.length && a[x] === b[y]) {
        x++
        y++
      }
      v[offset + k] = x
      if (x >= a.length && y >= b.length) return backtrack(a, b, trace, offset)
    }
  }
  return [...a.map((text) => ({ kind: 'removed' as const, text })), ...b.map((text) => ({ kind: 'added' as const, text }))]
}
