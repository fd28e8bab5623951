/* One dead letter: the error, every attempt with its traceback, the last steps, the input, and what can be done. */
import { useState } from 'react'
import { useParams } from 'wouter'
import { useApi } from '@/api/query'
import { useTitle } from '@/app/inboxCount'
import { useSession } from '@/app/session'
import { asCli } from '@/format/command'
import { shortId, visible } from '@/format/text'
import { Button, ButtonLink } from '@/parts/Button'
import { CopyRead } from '@/parts/CopyRead'
import { JsonView } from '@/parts/json/JsonView'
import { Loaded } from '@/parts/Loading'
import { Facts, Page, PageHeader, Panel } from '@/parts/Panel'
import { Status } from '@/parts/Status'
import { Duration, Time } from '@/parts/Time'
import { RunError } from '@/screens/run/header/RunError'
import { Target } from '@/screens/runs/runColumns'
import { LetterState } from './DeadLettersPage'
import { LETTER_ACTIONS, type LetterAction } from './letterBulk'
import { LetterBulkDialog } from './LetterBulkDialog'

function seconds(from: string | null, to: string | null): number | null {
  return from === null || to === null ? null : (Date.parse(to) - Date.parse(from)) / 1_000
}

export default function DeadLetterPage() {
  const { runId = '' } = useParams<{ runId: string }>()
  useTitle(`Dead letter ${shortId(runId)}`)
  const { may } = useSession()
  const [act, setAct] = useState<LetterAction | null>(null)
  const query = useApi('/api/v2/dead-letters/{run_id}', { path: { run_id: runId } }, { topics: ['dead_letters', 'runs'] })
  return (
    <Page>
      <Loaded query={query}>
        {(letter) => (
          <>
            <PageHeader title={<span className="flex flex-wrap items-center gap-2"><Target target={letter.target} /> <LetterState state={letter.state} /></span>} note={<code className="font-mono text-xs">{letter.run_id}</code>}>
              {may('runs:write') && (Object.keys(LETTER_ACTIONS) as LetterAction[]).map((action) => <Button key={action} icon={LETTER_ACTIONS[action].icon} look={LETTER_ACTIONS[action].danger ? 'danger' : 'normal'} onClick={() => setAct(action)}>{LETTER_ACTIONS[action].label}</Button>)}
              <ButtonLink to={`/runs/${letter.run_id}`}>Open the run</ButtonLink>
              <ButtonLink to={`/dead-letters?view=list&fingerprint=${letter.fingerprint}`}>Same cause</ButtonLink>
              <CopyRead path={`/api/v2/dead-letters/${letter.run_id}`} cli={asCli('dead-letters', 'show', letter.run_id)} />
            </PageHeader>
            <Panel title="Error"><RunError error={letter.error} /></Panel>
            <Panel>
              <Facts
                items={[
                  ['Run', letter.run_status === null ? 'deleted by retention' : <Status key="status" value={letter.run_status} />],
                  ['Died', <Time key="died" at={letter.died_at} style="exact" />],
                  ['First failed', <Time key="first" at={letter.first_failed_at} style="exact" />],
                  ['Times died', letter.times_died],
                  ['Last step', letter.last_step ?? '–'],
                  ['Lane', letter.lane],
                  ['Owner', letter.assigned_to ?? 'no one'],
                  ['Handled', letter.handled_by === null ? 'not yet' : <span key="by">{visible(letter.handled_by)} <Time at={letter.handled_at} style="relative" /></span>],
                  ['Note', letter.note === null ? '–' : visible(letter.note)],
                ]}
              />
            </Panel>
            <Panel title={`Attempts (${letter.attempts.length})`} flush>
              <ul className="divide-y divide-line">
                {letter.attempts.map((attempt) => (
                  <li key={attempt.attempt} className="flex flex-col gap-1 px-3 py-2">
                    <p className="flex flex-wrap gap-x-4 text-soft">
                      <span className="font-medium text-ink">Attempt {attempt.attempt}</span>
                      {attempt.outcome !== null && <Status value={attempt.outcome} plain />}
                      <Time at={attempt.started_at} />
                      <Duration seconds={seconds(attempt.started_at, attempt.ended_at)} />
                      {attempt.worker_id !== null && <code className="font-mono text-xs">{shortId(attempt.worker_id)}</code>}
                    </p>
                    {attempt.error !== null && <RunError error={attempt.error} />}
                  </li>
                ))}
              </ul>
            </Panel>
            <div className="grid gap-3 lg:grid-cols-2">
              <Panel title="Input">{letter.input === null ? <p className="text-soft">Not kept.</p> : <JsonView value={letter.input} label="the input" />}</Panel>
              <Panel title="Last steps">{letter.steps.length === 0 ? <p className="text-soft">The run has no steps.</p> : <JsonView value={letter.steps} label="the last steps" />}</Panel>
            </div>
            {act !== null && <LetterBulkDialog action={act} selection={{ ids: [letter.run_id] }} what={shortId(letter.run_id)} onClose={() => setAct(null)} onStarted={() => setAct(null)} />}
          </>
        )}
      </Loaded>
    </Page>
  )
}
