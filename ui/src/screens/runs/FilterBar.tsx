/* The filters of the list: chips for what is set, a field for text, and one for each further filter. */
import { ListFilter, Snowflake, X } from 'lucide-react'
import { useEffect, useState } from 'react'
import { parseDuration } from '@/format/duration'
import { serverNow } from '@/format/time'
import { Button, IconButton } from '@/parts/Button'
import { Dialog } from '@/parts/Dialog'
import { Check, Field, Select, TextInput } from '@/parts/form/Field'
import { Menu } from '@/parts/Menu'
import { RUN_STATUSES } from '@/text/status'
import { rootsOnly, type RunFilters, setFilters, SINGLE, WINDOWS, without } from './filters'

interface FilterBarProps {
  filters: RunFilters
  onChange: (filters: RunFilters) => void
}

/** Typing does not search; a pause of half a second or Enter does. */
function TextFilter({ value, onChange }: { value: string; onChange: (text: string) => void }) {
  const [text, setText] = useState(value)
  useEffect(() => setText(value), [value])
  useEffect(() => {
    if (text === value || (text !== '' && text.length < 3)) return
    const timer = setTimeout(() => onChange(text), 500)
    return () => clearTimeout(timer)
  }, [text, value, onChange])
  return (
    <TextInput
      type="search"
      aria-label="Text in id, target, key or progress note"
      placeholder="Id, target, key, note"
      value={text}
      onChange={(event) => setText(event.target.value)}
      onKeyDown={(event) => event.key === 'Enter' && onChange(text)}
      className="max-w-52"
    />
  )
}

function MoreFilters({ filters, onChange, onClose }: FilterBarProps & { onClose: () => void }) {
  const [draft, setDraft] = useState(filters)
  const [tags, setTags] = useState(filters.tag.join(' '))
  const apply = () => {
    onChange({ ...draft, tag: tags.split(/[\s,]+/).filter(Boolean) })
    onClose()
  }
  return (
    <Dialog
      title="Filters"
      onClose={onClose}
      footer={
        <Button look="main" onClick={apply}>
          Apply
        </Button>
      }
    >
      <form
        className="grid gap-3 sm:grid-cols-2"
        onSubmit={(event) => {
          event.preventDefault()
          apply()
        }}
      >
        {SINGLE.filter(([name]) => name !== 'text').map(([name, label, hint]) => (
          <Field key={name} label={label} hint={hint}>
            {(ids) => <TextInput {...ids} value={draft[name]} onChange={(event) => setDraft({ ...draft, [name]: event.target.value.trim() })} />}
          </Field>
        ))}
        <Field label="Tags" hint="Runs that have all of them">
          {(ids) => <TextInput {...ids} value={tags} onChange={(event) => setTags(event.target.value)} />}
        </Field>
        <Field label="Accepted from" hint="RFC 3339, such as 2026-11-17T09:00:00Z">
          {(ids) => <TextInput {...ids} value={draft.from} onChange={(event) => setDraft({ ...draft, from: event.target.value.trim(), window: '' })} />}
        </Field>
        <Field label="Accepted before" hint="RFC 3339">
          {(ids) => <TextInput {...ids} value={draft.before} onChange={(event) => setDraft({ ...draft, before: event.target.value.trim(), window: '' })} />}
        </Field>
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
    </Dialog>
  )
}

export function FilterBar({ filters, onChange }: FilterBarProps) {
  const [open, setOpen] = useState(false)
  const toggle = (status: string) =>
    onChange({ ...filters, status: filters.status.includes(status) ? filters.status.filter((other) => other !== status) : [...filters.status, status] })
  const freeze = () => {
    const seconds = parseDuration(filters.window) ?? 0
    onChange({ ...filters, window: '', from: new Date(serverNow() - seconds * 1_000).toISOString(), before: new Date(serverNow()).toISOString() })
  }
  const exact = filters.window === ''
  return (
    <div className="flex flex-wrap items-center gap-1.5">
      <TextFilter value={filters.text} onChange={(text) => onChange({ ...filters, text })} />
      <Menu
        label="Status"
        items={Object.entries(RUN_STATUSES).map(([status, { word, icon }]) => ({ label: word, icon, checked: filters.status.includes(status), onSelect: () => toggle(status) }))}
      />
      <Select
        aria-label="Time window"
        value={exact ? '' : filters.window}
        options={exact ? [['', 'Exact times'], ...WINDOWS] : WINDOWS.some(([value]) => value === filters.window) ? WINDOWS : [[filters.window, filters.window], ...WINDOWS]}
        onChange={(event) => event.target.value !== '' && onChange({ ...filters, window: event.target.value, from: '', before: '' })}
      />
      {!exact && filters.window !== 'all' && <IconButton label="Freeze the window: make its bounds exact times" icon={Snowflake} onClick={freeze} />}
      <Button icon={ListFilter} onClick={() => setOpen(true)}>
        Filters
      </Button>
      {filters.parent === '' && <Check label="Child runs" title="Also list runs that other runs started as tools" checked={!rootsOnly(filters)} onChange={(event) => onChange({ ...filters, children: event.target.checked ? 'yes' : '' })} />}
      {setFilters(filters)
        .filter((entry) => entry.name !== 'text')
        .map((entry) => (
          <span key={entry.name + entry.value} className="inline-flex h-6 max-w-64 items-center gap-1 rounded-full border border-line bg-accent-soft pr-0.5 pl-2 text-xs">
            <span className="truncate">
              {entry.label} <b className="font-medium">{entry.value.replaceAll('_', ' ')}</b>
            </span>
            <IconButton label={`Clear ${entry.label} ${entry.value}`} icon={X} onClick={() => onChange(without(filters, entry))} className="size-5 rounded-full" />
          </span>
        ))}
      {open && <MoreFilters filters={filters} onChange={onChange} onClose={() => setOpen(false)} />}
    </div>
  )
}
