/* A fresh installation: three steps to the first run. They are gone once a run exists. */
import { ButtonLink } from '@/parts/Button'
import { Command } from '@/parts/Copy'
import { Panel } from '@/parts/Panel'

const TASK = `from runlane import App, Context

app = App()

@app.task("greet")
async def greet(ctx: Context, name: str) -> str:
    await ctx.log(f"greeting {name}")
    return f"Hello {name}"`

export function FirstSteps() {
  return (
    <Panel title="Three steps to the first run">
      <ol className="flex max-w-[720px] list-decimal flex-col gap-4 pl-5">
        <li>
          <p className="mb-1">Write a task, in a file such as tasks.py:</p>
          <Command text={TASK} />
        </li>
        <li>
          <p className="mb-1">Serve it, with API, worker and this page in one process, and start a run:</p>
          <div className="flex flex-col gap-1.5">
            <Command text="runlane dev tasks:app" />
            <Command text={`runlane run greet --input '{"name": "Ann"}'`} />
          </div>
        </li>
        <li>
          <p className="mb-2">Watch it here: the list of runs shows it as soon as it is accepted.</p>
          <ButtonLink to="/runs">Open the list of runs</ButtonLink>
        </li>
      </ol>
    </Panel>
  )
}
