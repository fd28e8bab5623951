/* The command palette: pages, pasted ids, actions of the current page, definitions. */
import { Activity, ArrowRight, Bot, CornerDownLeft, type LucideIcon, Rows3, Server, Workflow, Wrench } from 'lucide-react'
import { type KeyboardEvent, useEffect, useId, useMemo, useRef, useState } from 'react'
import { useLocation } from 'wouter'
import { useApi } from '@/api/query'
import { cx } from '@/parts/classes'
import { allowedItems } from '../navigation'
import { useSession } from '../session'
import { useTenantParam } from '../tenant'
import { type PaletteCommand, pageCommands, pathOfHit, pathOfId } from './commands'

const HIT_ICONS: Record<string, LucideIcon> = { run: Activity, orchestration: Workflow, agent: Bot, tool: Wrench, lane: Rows3, worker: Server }

function matches(command: PaletteCommand, text: string): boolean {
  const all = `${command.label} ${command.words ?? ''}`.toLowerCase()
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => all.includes(word))
}

/** What the server finds by name or by the beginning of an id. */
function useFound(text: string, navigate: (path: string) => void): PaletteCommand[] {
  const [settled, setSettled] = useState('')
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text.trim()), 200)
    return () => clearTimeout(timer)
  }, [text])
  const tenant = useTenantParam()
  const query = useApi('/api/v2/search', { query: { ...tenant, q: settled } }, { enabled: settled.length >= 2, staleMs: 30_000, keep: true })
  return useMemo(
    () =>
      (settled.length < 2 ? [] : (query.data?.hits ?? [])).map((hit) => ({
        label: hit.title || hit.id,
        words: `${hit.id} ${text}`,
        hint: hit.kind.replaceAll('_', ' '),
        icon: HIT_ICONS[hit.kind] ?? ArrowRight,
        onSelect: () => navigate(pathOfHit(hit.kind, hit.id)),
      })),
    [query.data, settled, text, navigate],
  )
}

export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState('')
  const [at, setAt] = useState(0)
  const [, navigate] = useLocation()
  const { may } = useSession()
  const list = useId()
  const dialog = useRef<HTMLDialogElement>(null)
  const hits = useFound(text, navigate)
  useEffect(() => {
    const before = document.activeElement
    dialog.current?.showModal()
    return () => {
      if (before instanceof HTMLElement) before.focus()
    }
  }, [])

  const commands = useMemo(() => {
    const pages: PaletteCommand[] = allowedItems(may)
      .flat()
      .map((item) => ({ label: item.title, words: 'go page', icon: item.icon, hint: item.key === undefined ? undefined : `g ${item.key}`, onSelect: () => navigate(item.path) }))
    const pasted = pathOfId(text)
    if (pasted !== null) return [{ label: pasted.label, icon: ArrowRight, onSelect: () => navigate(pasted.path) }]
    const found = [...pageCommands(), ...pages, ...hits].filter((command) => matches(command, text))
    if (text.trim() !== '') found.push({ label: `Find runs with “${text.trim()}”`, icon: ArrowRight, onSelect: () => navigate(`/runs?text=${encodeURIComponent(text.trim())}&children=yes`) })
    return found.slice(0, 50)
  }, [text, may, navigate, hits])

  const run = (command: PaletteCommand | undefined) => {
    if (command === undefined) return
    onClose()
    command.onSelect()
  }
  const onKeyDown = (event: KeyboardEvent) => {
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key]
    if (to !== undefined) {
      event.preventDefault()
      setAt((to + commands.length) % Math.max(1, commands.length))
    } else if (event.key === 'Enter') {
      event.preventDefault()
      run(commands[at])
    }
  }
  return (
    <dialog
      ref={dialog}
      aria-label="Command palette"
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
      onMouseDown={(event) => event.target === dialog.current && onClose()}
      className="mx-auto mt-[12vh] w-[calc(100vw-24px)] max-w-[560px] overflow-hidden rounded-lg border border-line bg-raised p-0 shadow-float"
    >
      <input
        autoFocus
        role="combobox"
        aria-label="Search pages, actions and definitions, or paste an id"
        aria-expanded
        aria-controls={list}
        aria-activedescendant={commands.length > 0 ? `${list}-${at}` : undefined}
        placeholder="Search pages, actions and definitions, or paste an id"
        value={text}
        onChange={(event) => {
          setText(event.target.value)
          setAt(0)
        }}
        onKeyDown={onKeyDown}
        className="h-11 w-full border-b border-line bg-transparent px-4 text-base outline-none placeholder:text-faint"
      />
      <ul id={list} role="listbox" aria-label="Commands" className="max-h-[50vh] overflow-y-auto p-1">
        {commands.map((command, index) => (
          <li
            key={`${command.label}-${index}`}
            id={`${list}-${index}`}
            role="option"
            aria-selected={index === at}
            onMouseMove={() => setAt(index)}
            onClick={() => run(command)}
            className={cx('flex h-8 items-center gap-2.5 rounded-sm px-3', index === at && 'bg-selected')}
          >
            {command.icon !== undefined && <command.icon size={15} aria-hidden className="text-soft" />}
            <span className="min-w-0 flex-1 truncate">{command.label}</span>
            {command.hint !== undefined && <span className="text-xs text-faint">{command.hint}</span>}
            {index === at && <CornerDownLeft size={13} aria-hidden className="text-faint" />}
          </li>
        ))}
      </ul>
    </dialog>
  )
}
