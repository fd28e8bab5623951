/* What went in and what came out. */
import type { Run } from '@/api/types'
import { formatCount } from '@/format/number'
import { Empty } from '@/parts/Empty'
import { JsonView } from '@/parts/json/JsonView'
import { Panel } from '@/parts/Panel'
import { isEnded, statusText } from '@/text/status'
import { RunError } from './header/RunError'

export function InputResultTab({ run }: { run: Run }) {
  return (
    <div className="grid gap-3 p-3 lg:grid-cols-2">
      <Panel title="Input">{run.input === null ? <Empty title="No input" /> : <JsonView value={run.input} label="the input" openDepth={3} />}</Panel>
      <Panel title={run.error === null ? 'Result' : 'Error'}>
        {run.error !== null ? (
          <RunError error={run.error} />
        ) : isEnded(run.status) ? (
          <JsonView value={run.result} label="the result" openDepth={3} />
        ) : (
          <p className="text-soft">
            The run is {statusText(run.status).word}
            {run.progress === null ? '' : ` (${formatCount(Math.round(run.progress * 100))}%)`}. Its result is stored when it completes.
          </p>
        )}
      </Panel>
      {run.origin !== null && (
        <Panel title="Started by">
          <JsonView value={run.origin} label="the origin" />
        </Panel>
      )}
    </div>
  )
}
