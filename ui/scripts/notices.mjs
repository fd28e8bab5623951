/* The licences of the packages that the dashboard contains. A licence outside of the list ends the build. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const ALLOWED = new Set(['MIT', 'ISC', 'BSD-2-Clause', 'BSD-3-Clause', '0BSD', 'Apache-2.0', 'Unlicense'])

export function notices() {
  const lock = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8'))
  const parts = ['The dashboard of Runlane contains the following packages.\n']
  for (const [path, entry] of Object.entries(lock.packages).sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (path === '' || entry.dev === true || entry.optional === true) continue
    const name = path.replace(/^.*node_modules\//, '')
    // Types have no code in the build.
    if (name.startsWith('@types/')) continue
    const folder = join(ROOT, path)
    if (!existsSync(folder)) continue
    const licence = entry.license ?? JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')).license
    if (!ALLOWED.has(licence)) throw new Error(`${name} has the licence "${licence}", which is not allowed. Choose another package.`)
    const file = readdirSync(folder).find((entryName) => /^licen[cs]e(\.|$)/i.test(entryName))
    const text = file === undefined ? '' : readFileSync(join(folder, file), 'utf8').trim()
    parts.push(`${'-'.repeat(78)}\n${name} ${entry.version} (${licence})\n\n${text}\n`)
  }
  return parts.join('\n')
}
