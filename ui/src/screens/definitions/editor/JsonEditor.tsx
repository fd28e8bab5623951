/* The JSON editor: line-precise findings, completion, and the step under the cursor. */
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from '@codemirror/autocomplete'
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { json, jsonParseLinter } from '@codemirror/lang-json'
import { type Diagnostic, lintGutter, lintKeymap, linter, setDiagnostics } from '@codemirror/lint'
import { EditorState } from '@codemirror/state'
import { EditorView, highlightActiveLine, hoverTooltip, keymap, lineNumbers, type Tooltip } from '@codemirror/view'
import { useEffect, useRef } from 'react'
import { complete, type Vocabulary } from './complete'
import { type FieldText, type Path } from './describe'
import { findStep, locate, pathAt, stepAt } from './locate'

export interface Finding {
  /** JSON Pointer of its place. */
  pointer: string
  step: string | null
  message: string
  severity: 'error' | 'warning'
}

interface JsonEditorProps {
  text: string
  onChange: (text: string) => void
  findings: Finding[]
  vocabulary: Vocabulary
  readOnly: boolean
  /** The step that a click in the graph has chosen. */
  step: string | null
  onStep: (step: string | null) => void
  /** The field under the cursor; null while the text is not JSON. */
  onPath: (path: Path | null) => void
  describe: (path: Path) => FieldText | null
}

// The policy of the page allows style elements with its nonce only.
const NONCE = document.querySelector<HTMLMetaElement>('meta[name=csp-nonce]')?.content ?? ''

const THEME = EditorView.theme({
  '&': { height: '100%', fontSize: '12px', backgroundColor: 'var(--surface)', color: 'var(--ink)' },
  '.cm-scroller': { fontFamily: 'var(--font-mono)', lineHeight: '18px' },
  '.cm-gutters': { backgroundColor: 'var(--sunken)', color: 'var(--faint)', border: 'none' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'var(--hover)' },
  '.cm-cursor': { borderLeftColor: 'var(--ink)' },
  '&.cm-focused .cm-selectionBackground, .cm-selectionBackground': { backgroundColor: 'var(--accent-soft) !important' },
  '.cm-tooltip': { backgroundColor: 'var(--raised)', color: 'var(--ink)', border: '1px solid var(--line)' },
  '.cm-tooltip-autocomplete > ul > li[aria-selected]': { backgroundColor: 'var(--selected)', color: 'var(--ink)' },
  '.cm-diagnostic-error': { borderLeft: '3px solid var(--bad)' },
  '.cm-diagnostic-warning': { borderLeft: '3px solid var(--wait)' },
})

function diagnosticsOf(text: string, findings: Finding[]): Diagnostic[] {
  return findings.map((finding) => ({ ...locate(text, finding.pointer), severity: finding.severity, message: finding.message }))
}

/** What the field under the pointer means. */
function fieldTooltip(text: string, at: number, describe: (path: Path) => FieldText | null): Tooltip | null {
  const path = pathAt(text, at)
  const found = path === null ? null : describe(path)
  if (found === null) return null
  const create = () => {
    const dom = document.createElement('div')
    dom.className = 'max-w-100 px-2 py-1 font-sans text-xs'
    dom.append(found.about, document.createElement('br'))
    const facts = document.createElement('span')
    facts.className = 'text-soft'
    facts.append(found.facts)
    dom.append(facts)
    return { dom }
  }
  return { pos: at, above: true, create }
}

export default function JsonEditor({ text, onChange, findings, vocabulary, readOnly, step, onStep, onPath, describe }: JsonEditorProps) {
  const host = useRef<HTMLDivElement>(null)
  const view = useRef<EditorView | null>(null)
  const callbacks = useRef({ onChange, onStep, onPath, describe, vocabulary })
  callbacks.current = { onChange, onStep, onPath, describe, vocabulary }
  useEffect(() => {
    const created = new EditorView({
      parent: host.current!,
      state: EditorState.create({
        doc: text,
        extensions: [
          ...(NONCE === '' ? [] : [EditorView.cspNonce.of(NONCE)]),
          lineNumbers(), history(), json(), closeBrackets(), highlightActiveLine(), lintGutter(), EditorView.lineWrapping, THEME,
          linter(jsonParseLinter()),
          hoverTooltip((shown, at) => fieldTooltip(shown.state.doc.toString(), at, callbacks.current.describe)),
          autocompletion({ override: [(context) => complete(callbacks.current.vocabulary)(context)] }),
          keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
          EditorState.readOnly.of(readOnly),
          EditorView.contentAttributes.of({ 'aria-label': 'Definition as JSON' }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) callbacks.current.onChange(update.state.doc.toString())
            if (!update.selectionSet || !update.view.hasFocus) return
            const [written, at] = [update.state.doc.toString(), update.state.selection.main.head]
            callbacks.current.onStep(stepAt(written, at))
            callbacks.current.onPath(pathAt(written, at))
          }),
        ],
      }),
    })
    view.current = created
    return () => created.destroy()
    // The editor owns its text after it was created.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [readOnly])
  useEffect(() => {
    const editor = view.current
    if (editor === null || editor.state.doc.toString() === text) return
    editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: text } })
  }, [text])
  useEffect(() => {
    const editor = view.current
    if (editor !== null) editor.dispatch(setDiagnostics(editor.state, diagnosticsOf(editor.state.doc.toString(), findings)))
  }, [findings])
  useEffect(() => {
    const editor = view.current
    if (editor === null || step === null || editor.hasFocus) return
    const place = findStep(editor.state.doc.toString(), step)
    if (place !== null) editor.dispatch({ selection: { anchor: place.from, head: place.to }, effects: EditorView.scrollIntoView(place.from, { y: 'center' }) })
  }, [step])
  return <div ref={host} className="h-full min-h-0 overflow-hidden" />
}
