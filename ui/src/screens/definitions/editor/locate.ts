/* Where a JSON Pointer and a step are in the text. */

export interface Range {
  from: number
  to: number
}

const SPACE = /\s/

/** A reader that moves through JSON text and knows where values begin and end. It accepts only valid JSON. */
class Scanner {
  at = 0
  constructor(readonly text: string) {}

  space(): void {
    while (this.at < this.text.length && SPACE.test(this.text[this.at]!)) this.at += 1
  }

  string(): string {
    const from = this.at
    this.at += 1
    while (this.at < this.text.length && this.text[this.at] !== '"') this.at += this.text[this.at] === '\\' ? 2 : 1
    this.at += 1
    return JSON.parse(this.text.slice(from, this.at)) as string
  }

  /** Visit each entry of the container at this position with its key and the place of the key. */
  entries(visit: (key: string, place: Range) => boolean): void {
    const array = this.text[this.at] === '['
    this.at += 1
    for (let index = 0; ; index++) {
      this.space()
      if (this.text[this.at] === (array ? ']' : '}') || this.at >= this.text.length) break
      const from = this.at
      const key = array ? String(index) : this.string()
      const place = { from, to: this.at }
      if (!array) {
        this.space()
        this.at += 1
        this.space()
      }
      if (visit(key, array ? { from, to: from + 1 } : place)) return
      this.value()
      this.space()
      if (this.text[this.at] === ',') this.at += 1
    }
    this.at += 1
  }

  value(): void {
    const first = this.text[this.at]
    if (first === '"') this.string()
    else if (first === '{' || first === '[') this.entries(() => false)
    else while (this.at < this.text.length && !/[,\]}\s]/.test(this.text[this.at]!)) this.at += 1
  }
}

/** The key or item that a pointer such as `/steps/2/next_step_id` names, or the deepest part of it that exists. */
export function locate(text: string, pointer: string): Range {
  const scanner = new Scanner(text)
  let found: Range = { from: 0, to: Math.min(1, text.length) }
  scanner.space()
  for (const part of pointer.split('/').slice(1).map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))) {
    if (text[scanner.at] !== '{' && text[scanner.at] !== '[') break
    let entered = false
    scanner.entries((key, place) => {
      if (key !== part) return false
      found = place
      entered = true
      return true
    })
    if (!entered) break
  }
  return found
}

/** The place of a step, by its id. */
export function findStep(text: string, step: string): Range | null {
  try {
    const steps = (JSON.parse(text) as { steps?: { id?: unknown }[] }).steps ?? []
    const index = steps.findIndex((candidate) => candidate.id === step)
    return index < 0 ? null : locate(text, `/steps/${index}/id`)
  } catch {
    return null
  }
}

/** The id of the step that contains a position. */
export function stepAt(text: string, at: number): string | null {
  try {
    const steps = (JSON.parse(text) as { steps?: { id?: unknown }[] }).steps ?? []
    const index = steps.findLastIndex((_step, candidate) => locate(text, `/steps/${candidate}`).from <= at)
    const id = steps[index]?.id
    return typeof id === 'string' ? id : null
  } catch {
    return null
  }
}

/** The keys and positions that lead to the value or the key at a place in the text; null while the text is not JSON. */
export function pathAt(text: string, at: number): (string | number)[] | null {
  try {
    JSON.parse(text)
  } catch {
    return null
  }
  const path: (string | number)[] = []
  const scanner = new Scanner(text)
  scanner.space()
  for (let open: number | null = scanner.at; open !== null; ) {
    scanner.at = open
    open = null
    const array = text[scanner.at] === '['
    if (!array && text[scanner.at] !== '{') break
    scanner.entries((key, place) => {
      const value = new Scanner(text)
      value.at = scanner.at
      value.value()
      // The comma at the end of a line belongs to what is before it.
      const end = text[value.at] === ',' ? value.at + 1 : value.at
      if (at < place.from || at > end) return false
      path.push(array ? Number(key) : key)
      open = scanner.at
      return true
    })
  }
  return path
}
