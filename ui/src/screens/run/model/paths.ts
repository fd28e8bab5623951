/* Paths of steps: `split/0/draft` is `draft` in branch 0 of `split`, `sub/>look` is `look` in the inner orchestration. */

export interface PathPart {
  id: string
  name: string
  kind: 'step' | 'part'
}

/** The spans that a path lies in, from the outermost to the step itself. */
export function partsOf(path: string): PathPart[] {
  const inner = path.indexOf('!')
  const segments = (inner < 0 ? path : path.slice(0, inner)).split('/')
  const parts: PathPart[] = []
  let id = ''
  for (const segment of segments) {
    id = id === '' ? segment : `${id}/${segment}`
    const isPart = /^\d+$/.test(segment)
    parts.push({ id, name: isPart ? segment : segment.replace(/^>/, ''), kind: isPart ? 'part' : 'step' })
  }
  return parts
}

/** The id of the step in a path, without its place and its repetition. */
export function stepIdOf(path: string): string {
  return partsOf(path).at(-1)!.name.replace(/~\d+$/, '')
}

/** The path of the step that a question inside a step belongs to. */
export function ownerOf(path: string): string {
  const at = path.indexOf('!')
  return at < 0 ? path : path.slice(0, at)
}
