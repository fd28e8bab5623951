/* After the build: the notices of third parties, and a .br and .gz beside each file that compresses well.

Nothing here depends on time, place or order of the file system, so the same lock and Node give the same bytes. */
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import { notices } from './notices.mjs'

const OUT = fileURLToPath(new URL('../../src/runlane/ui_assets/', import.meta.url))
const COMPRESSIBLE = /\.(js|css|html|svg|txt|json)$/
const WORTH_BYTES = 1_000

function files(folder) {
  return readdirSync(folder)
    .sort()
    .flatMap((name) => {
      const path = join(folder, name)
      return statSync(path).isDirectory() ? files(path) : [path]
    })
}

writeFileSync(join(OUT, 'third-party-notices.txt'), notices())
for (const path of files(OUT)) {
  const content = readFileSync(path)
  if (!COMPRESSIBLE.test(path) || content.length < WORTH_BYTES || path.endsWith('index.html')) continue
  const quality = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: content.length }
  writeFileSync(`${path}.br`, brotliCompressSync(content, { params: quality }))
  writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }))
}
