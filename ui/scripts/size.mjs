/* The size budget. Each chunk is measured as gzip of what the server sends. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'

const OUT = fileURLToPath(new URL('../../src/runlane/ui_assets/', import.meta.url))
const KB = 1_000
const BUDGETS = { entry: 190 * KB, css: 20 * KB, run: 60 * KB, graph: 90 * KB, editor: 130 * KB, markdown: 55 * KB, total: 1_000 * KB }
// Chunks are named after the module that is imported lazily.
const CHUNKS = { run: /^RunPage-/, graph: /^GraphCanvas-/, editor: /^JsonEditor-/, markdown: /^MarkdownText-/ }

if (!existsSync(join(OUT, 'index.html'))) throw new Error('The dashboard is not built. Run: make ui')
const index = readFileSync(join(OUT, 'index.html'), 'utf8')
const assets = join(OUT, 'assets')
const names = readdirSync(assets).filter((name) => /\.(js|css)$/.test(name))
const size = (name) => gzipSync(readFileSync(join(assets, name)), { level: 9 }).length
const sum = (list) => list.reduce((total, name) => total + size(name), 0)

// What index.html loads, and what that imports at once.
const entry = new Set()
const visit = (name) => {
  if (entry.has(name) || !names.includes(name)) return
  entry.add(name)
  if (!name.endsWith('.js')) return
  for (const match of readFileSync(join(assets, name), 'utf8').matchAll(/(?:from|import)\s*["']\.\/([\w.-]+\.js)["']/g)) visit(match[1])
}
for (const match of index.matchAll(/assets\/([\w.-]+\.(?:js|css))/g)) visit(match[1])

const measured = {
  entry: sum([...entry].filter((name) => name.endsWith('.js'))),
  css: sum(names.filter((name) => name.endsWith('.css') && entry.has(name))),
  total: sum(names),
}
for (const [chunk, pattern] of Object.entries(CHUNKS)) {
  const found = names.filter((name) => pattern.test(name) && name.endsWith('.js'))
  if (found.length > 0) measured[chunk] = sum(found)
}
let over = false
for (const [chunk, bytes] of Object.entries(measured)) {
  const budget = BUDGETS[chunk]
  over ||= bytes > budget
  console.log(`${chunk.padEnd(9)} ${(bytes / KB).toFixed(1).padStart(7)} kB of ${(budget / KB).toFixed(0).padStart(5)} kB${bytes > budget ? '  OVER' : ''}`)
}
if (over) process.exit(1)
