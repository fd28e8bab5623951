import { describe, expect, it } from 'vitest'
import { collect, translated } from '../scripts/strings.mjs'
import catalogue from '../strings/en.json'

const SOURCES = import.meta.glob<string>(['../src/**/*.{ts,tsx}', '!../src/**/*.d.ts'], { query: '?raw', import: 'default', eager: true })

describe('the catalogue of messages', () => {
  it('has what people read, and not what programs read', () => {
    const source = `
      import { Link } from 'Wouter Library'
      const HINT = 'Press Enter to send.'
      const page = (
        <Page className="flex items-center Big" title="Lanes" id="Lane list">
          Hello <b>{count === 'Some value here' ? 'one run' : \`\${count} runs\`}</b>
        </Page>
      )
      notify(\`The run \${id} is cancelled.\`)
      const facts = [['Version', version]]
    `
    expect(collect(source)).toEqual(['Press Enter to send.', 'Lanes', 'Hello', 'one run', '{0} runs', 'The run {0} is cancelled.', 'Version'])
  })
  it('replaces messages, and keeps spaces and values where the translation has them', () => {
    const source = "const a = <p title=\"Lanes\">\n  Hello <b>{`${n} of ${m ? 'many runs' : ''}`}</b> now\n</p>"
    const german = { Lanes: 'Spuren', Hello: 'Hallo', '{0} of {1}': 'von {1} sind es {0}', 'many runs': 'vielen `Läufen`', now: 'jetzt' }
    expect(translated(source, german)).toBe(
      "const a = <p title={\"Spuren\"}>\n  {\"Hallo\"} <b>{`von ${m ? \"vielen `Läufen`\" : ''} sind es ${n}`}</b> {\"jetzt\"}\n</p>",
    )
  })
  it('covers every source: a translation of all messages leaves none', () => {
    // The mark is inside of a word, so that a marked text is still recognized as one.
    const mark = (message: string) => message.replace(/\p{L}+/u, '$&ÿ')
    const marked = Object.fromEntries(Object.keys(catalogue).map((message) => [message, mark(message)]))
    expect(Object.keys(SOURCES).length).toBeGreaterThan(200)
    for (const [name, source] of Object.entries(SOURCES)) {
      expect(collect(translated(source, marked)), name).toEqual(collect(source).map(mark))
    }
  }, 120_000)
})
