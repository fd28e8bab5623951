/* What can be done with this run now: the likely actions as buttons, the others in a menu. */
import { ArrowUpDown, Copy, Download, GitFork, MoreHorizontal, Play, Radio, Rows3, Tags } from 'lucide-react'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { call } from '@/api/client'
import { toApiError } from '@/api/errors'
import { formatJson } from '@/api/json'
import { hasSteps, type Run, targetParts } from '@/api/types'
import { usePaletteCommands } from '@/app/palette/commands'
import { useSession } from '@/app/session'
import { asCli, asCurl } from '@/format/command'
import { ActionButton } from '@/parts/action/ActionButtons'
import { ActionDialog } from '@/parts/action/ActionDialog'
import { copyAndNotify } from '@/parts/Copy'
import { Menu, type MenuItem } from '@/parts/Menu'
import { notify } from '@/parts/Notices'
import { download } from '@/screens/runs/exportRows'
import { BulkDialog } from '@/screens/runs/BulkDialog'
import { isEnded } from '@/text/status'
import { ForkDialog } from '../dialogs/ForkDialog'
import { PriorityDialog } from '../dialogs/PriorityDialog'
import { SendEventDialog } from '../dialogs/SendEventDialog'
import { TagsDialog } from '../dialogs/TagsDialog'
import { retryAction, simpleActions } from '../runActions'

type Open = 'priority' | 'lane' | 'tags' | 'fork' | 'event' | 'retry-latest' | null

/** Every page of a list. */
async function pagesOf<Page, Item, Cursor>(read: (cursor: Cursor | undefined) => Promise<Page>, items: (page: Page) => Item[], next: (page: Page) => Cursor | undefined): Promise<Item[]> {
  const found: Item[] = []
  let cursor: Cursor | undefined
  do {
    const page = await read(cursor)
    found.push(...items(page))
    cursor = next(page)
  } while (cursor !== undefined)
  return found
}

async function downloadAll(run: Run): Promise<void> {
  const path = { run_id: run.run_id }
  const [{ attempts }, steps, events] = await Promise.all([
    call('get', '/api/v2/runs/{run_id}/attempts', { path }),
    pagesOf((cursor: string | undefined) => call('get', '/api/v2/runs/{run_id}/steps', { path, query: { limit: 1000, cursor } }), (page) => page.steps, (page) => page.next_cursor ?? undefined),
    pagesOf((after: number | undefined) => call('get', '/api/v2/runs/{run_id}/events', { path, query: { limit: 1000, after } }), (page) => page.events, (page) => (page.events.length > 0 && page.next_after < page.last_seq ? page.next_after : undefined)),
  ])
  download(`${run.run_id}.json`, formatJson({ run, attempts, steps, events }), 'application/json')
}

function pythonOf(run: Run): string {
  return `from runlane import Client\n\nasync with Client("${location.origin}") as client:\n    run = await client.get("${run.run_id}")\n    print(run.status, run.result)\n`
}

export function RunButtons({ run }: { run: Run }) {
  const { may } = useSession()
  const [, navigate] = useLocation()
  const [open, setOpen] = useState<Open>(null)
  const writes = may('runs:write')
  const ended = isEnded(run.status)
  const waiting = !ended && run.status !== 'running'
  const only = (possible: boolean, reason: string): string | null => (possible ? null : reason)
  const changes: MenuItem[] = [
    { label: 'Change the priority', icon: ArrowUpDown, refused: only(waiting, 'Only a waiting run can change its priority.'), onSelect: () => setOpen('priority') },
    { label: 'Move to a lane', icon: Rows3, refused: only(waiting, 'Only a waiting run can change its lane.'), onSelect: () => setOpen('lane') },
    { label: 'Change tags', icon: Tags, onSelect: () => setOpen('tags') },
    { label: 'Fork from a step', icon: GitFork, refused: only(hasSteps(run.target), 'Only runs with steps can be forked.'), onSelect: () => setOpen('fork') },
    { label: 'Send an event', icon: Radio, refused: only(hasSteps(run.target) && !ended, 'Only an open run with steps receives events.'), onSelect: () => setOpen('event') },
    { label: 'Start another like it', icon: Play, refused: only(targetParts(run.target).kind !== 'graph', 'Runs of graphs belong to their thread.'), onSelect: () => navigate(`/start?like=${run.run_id}`) },
    { label: 'Retry on the current versions', icon: GitFork, refused: only(run.status === 'failed' && hasSteps(run.target), 'Only a failed run with steps can continue on other versions.'), onSelect: () => setOpen('retry-latest') },
  ]
  const path = `/api/v2/runs/${run.run_id}`
  const reads: MenuItem[] = [
    { label: 'Copy as curl', icon: Copy, onSelect: () => copyAndNotify(asCurl('get', path)) },
    { label: 'Copy as command', icon: Copy, onSelect: () => copyAndNotify(asCli('runs', 'show', run.run_id)) },
    { label: 'Copy as Python', icon: Copy, onSelect: () => copyAndNotify(pythonOf(run)) },
    { label: 'Download everything', icon: Download, onSelect: () => void downloadAll(run).catch((error: unknown) => notify(toApiError(error).message, { bad: true })) },
  ]
  const items = writes ? [...changes, 'line' as const, ...reads] : reads
  usePaletteCommands(items.flatMap((item) => (item === 'line' || item.refused ? [] : [{ label: String(item.label), icon: item.icon, hint: 'this run', onSelect: item.onSelect }])))
  const close = () => setOpen(null)
  return (
    <div className="flex flex-wrap items-center gap-1.5">
      {writes && simpleActions(run).map((action) => <ActionButton key={action.id} action={action} />)}
      <Menu label="More actions" icon={MoreHorizontal} iconOnly items={items} />
      {open === 'priority' && <PriorityDialog run={run} onClose={close} />}
      {open === 'lane' && <BulkDialog action="lane" selected={{ ids: [run.run_id], statuses: [run.status] }} onClose={close} onStarted={close} />}
      {open === 'tags' && <TagsDialog run={run} onClose={close} />}
      {open === 'fork' && <ForkDialog run={run} step={null} onClose={close} />}
      {open === 'event' && <SendEventDialog run={run} onClose={close} />}
      {open === 'retry-latest' && <ActionDialog action={retryAction(run, true)} onClose={close} />}
    </div>
  )
}
