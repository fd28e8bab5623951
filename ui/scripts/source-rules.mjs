/* Rules that no linter has: no HTML from strings, and files that can be read in one go. */
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const SRC = fileURLToPath(new URL('../src', import.meta.url))
const MAX_LINES = 300
const BANNED = /dangerouslySetInnerHTML|\.(?:inner|outer)HTML\b|insertAdjacentHTML|document\.write|createContextualFragment|\bnew Function\b/
const problems = []

function check(folder) {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name)
    if (statSync(path).isDirectory()) check(path)
    else if (/\.tsx?$/.test(name) && name !== 'schema.d.ts') {
      const lines = readFileSync(path, 'utf8').split('\n')
      if (lines.length > MAX_LINES) problems.push(`${path} has ${lines.length} lines. Split it: at most ${MAX_LINES}.`)
      lines.forEach((line, index) => {
        if (BANNED.test(line)) problems.push(`${path}:${index + 1} makes HTML or code from a string. Use elements.`)
      })
    }
  }
}

check(SRC)
for (const problem of problems) console.error(problem)
if (problems.length > 0) process.exit(1)
