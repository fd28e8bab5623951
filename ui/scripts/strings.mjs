/* The catalogue of the messages that people read, collected from the sources, and builds in another language.

The English text is the name of a message, as in gettext; {0} stands for a value. `strings/en.json` has all of them, and
`strings/CODE.json` their translations. RUNLANE_UI_LANGUAGE=CODE builds with them; what has no translation stays English. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseAst } from 'rolldown/parseAst'

const SRC = fileURLToPath(new URL('../src', import.meta.url))
const FOLDER = fileURLToPath(new URL('../strings/', import.meta.url))
// Attributes, fields and arguments whose strings are messages.
const NAMES = new Set('title label note hint placeholder aria-label aria-description alt text verb empty about subject caption consequence done meaning word message reason refused description error'.split(' '))
const ARGUMENTS = { plural: [1, 2], notify: [0], useTitle: [0], announce: [0], field: [1], only: [1] }
const IGNORED = new Set(['className', 'class', 'href', 'to', 'd', 'viewBox', 'key', 'id', 'command', 'cli', 'path', 'pattern'])
const LETTER = /\p{L}/u
const SENTENCE = /^\p{Lu}\p{Ll}*[ ,].*\p{L}|\p{Ll} .*[.?!]$/u
const WORD = /^\p{Lu}\p{Ll}+$/u
const KEYBOARD = /^(?:Arrow\w+|PageUp|PageDown|Home|End|Enter|Escape|Tab|Shift|Control|Meta|Delete)$/

const nameOf = (node) => node?.name?.name ?? node?.name ?? node?.value ?? ''

/** The text of a literal or a template, with {0} for each value; null for any other node. */
function messageOf(node) {
  if (node.type === 'Literal' && typeof node.value === 'string') return node.value
  if (node.type !== 'TemplateLiteral') return null
  return node.quasis.map((part, index) => part.value.cooked + (index < node.expressions.length ? `{${index}}` : '')).join('')
}

const isText = (message) => message !== null && LETTER.test(message.replaceAll(/\{\d+\}/g, ''))

/** Yield each text of a source: its node, and the message that names it. */
function* messages(node, inText, parent) {
  if (node === null || typeof node !== 'object' || typeof node.type !== 'string') return
  const { type } = node
  if (type.startsWith('Import') || type.startsWith('TS') && type !== 'TSAsExpression' && type !== 'TSSatisfiesExpression' && type !== 'TSNonNullExpression') return
  if (type === 'JSXText') {
    const message = node.value.replaceAll(/\s+/g, ' ').trim()
    if (isText(message)) yield { node, message }
    return
  }
  const message = messageOf(node)
  if (message !== null) {
    const listed = parent?.type === 'ArrayExpression' && (WORD.test(message) || SENTENCE.test(message))
    if (isText(message) && !KEYBOARD.test(message) && (inText || listed || SENTENCE.test(message))) yield { node, message }
    for (const expression of node.expressions ?? []) yield* messages(expression, inText, node)
    return
  }
  if (type === 'JSXAttribute') {
    const name = nameOf(node)
    if (!IGNORED.has(name)) yield* messages(node.value, NAMES.has(name), node)
  } else if (type === 'JSXExpressionContainer') {
    yield* messages(node.expression, parent?.type === 'JSXAttribute' ? inText : true, node)
  } else if (type === 'Property' && !node.computed) {
    const name = nameOf(node.key)
    if (!IGNORED.has(name)) yield* messages(node.value, NAMES.has(name), node)
  } else if (type === 'ConditionalExpression') {
    yield* messages(node.test, false, node)
    yield* messages(node.consequent, inText, node)
    yield* messages(node.alternate, inText, node)
  } else if (type === 'LogicalExpression') {
    yield* messages(node.left, false, node)
    yield* messages(node.right, inText, node)
  } else if (type === 'BinaryExpression') {
    if (node.operator === '+') for (const side of [node.left, node.right]) yield* messages(side, inText, node)
    else for (const side of [node.left, node.right]) if (side.type !== 'Literal') yield* messages(side, false, node)
  } else if (type === 'CallExpression') {
    const callee = nameOf(node.callee)
    const places = Object.hasOwn(ARGUMENTS, callee) ? ARGUMENTS[callee] : []
    if (callee !== 'cx') for (const [index, argument] of node.arguments.entries()) yield* messages(argument, places.includes(index), node)
    yield* messages(node.callee, false, node)
  } else if (type === 'TSAsExpression' || type === 'TSSatisfiesExpression' || type === 'TSNonNullExpression' || type === 'ParenthesizedExpression') {
    yield* messages(node.expression, inText, parent)
  } else {
    for (const [name, value] of Object.entries(node)) {
      if (name === 'typeAnnotation' || name === 'typeParameters' || (type === 'MemberExpression' && name === 'property') || (type === 'SwitchCase' && name === 'test')) continue
      for (const child of Array.isArray(value) ? value : [value]) yield* messages(child, false, node)
    }
  }
}

/** The messages of a source. */
export function collect(source) {
  return [...messages(parseAst(source, { lang: 'tsx' }), false, null)].map(({ message }) => message)
}

/** The source with the translations of its messages. */
export function translated(source, translations) {
  const found = [...messages(parseAst(source, { lang: 'tsx' }), false, null)]
  const rewrite = (from, to) => {
    let written = ''
    let at = from
    for (const { node, message } of found) {
      const other = translations[message]
      if (node.start < at || node.end > to || other === undefined) continue
      written += source.slice(at, node.start) + replacement(node, other)
      at = node.end
    }
    return written + source.slice(at, to)
  }
  const replacement = (node, text) => {
    if (node.type === 'JSXText') {
      const raw = source.slice(node.start, node.end)
      return `${/^\s*/.exec(raw)[0]}{${JSON.stringify(text)}}${/\s*$/.exec(raw)[0]}`
    }
    if (node.type === 'Literal') return source[node.start - 1] === '=' ? `{${JSON.stringify(text)}}` : JSON.stringify(text)
    const quoted = (part) => part.replaceAll(/[\\`]|\$\{/g, String.raw`\$&`)
    const parts = text.split(/\{(\d+)\}/)
    return `\`${parts.map((part, index) => (index % 2 === 0 ? quoted(part) : `\${${rewrite(node.expressions[part].start, node.expressions[part].end)}}`)).join('')}\``
  }
  return rewrite(0, source.length)
}

/** Every message of the dashboard, sorted. */
export function catalogue() {
  const files = readdirSync(SRC, { recursive: true }).filter((name) => /\.tsx?$/.test(name) && !name.endsWith('.d.ts'))
  const all = new Set(files.flatMap((name) => collect(readFileSync(join(SRC, name), 'utf8'))))
  return Object.fromEntries([...all].sort((a, b) => (a < b ? -1 : 1)).map((message) => [message, message]))
}

/** A plugin of Vite that builds the dashboard in a language. */
export function inLanguage(code) {
  const translations = JSON.parse(readFileSync(join(FOLDER, `${code}.json`), 'utf8'))
  return {
    name: 'runlane-strings',
    enforce: 'pre',
    transform: (source, id) => (id.startsWith(SRC) && /\.tsx?$/.test(id) ? { code: translated(source, translations), map: null } : null),
    transformIndexHtml: (html) => html.replace('lang="en"', `lang="${code}"`),
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const path = join(FOLDER, 'en.json')
  const text = `${JSON.stringify(catalogue(), null, 1)}\n`
  if (process.argv.includes('--write')) writeFileSync(path, text)
  else if (readFileSync(path, 'utf8') !== text) {
    console.error('ui/strings/en.json does not have the messages of the sources. Run: cd ui && npm run strings')
    process.exit(1)
  }
}
