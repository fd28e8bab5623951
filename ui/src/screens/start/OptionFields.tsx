/* How a run is queued: everything has a default. */
import { Check, Field, TextInput } from '@/parts/form/Field'
import type { StartOptions } from './startRequest'

export function OptionFields({ options, onChange, problems }: { options: StartOptions; onChange: (options: StartOptions) => void; problems: Record<string, string> }) {
  const text = (name: keyof StartOptions, label: string, hint: string, field: string, numeric = false) => (
    <Field label={label} hint={hint} problem={problems[field]}>
      {(ids) => (
        <TextInput {...ids} inputMode={numeric ? 'numeric' : undefined} value={String(options[name])} onChange={(event) => onChange({ ...options, [name]: event.target.value })} />
      )}
    </Field>
  )
  return (
    <div className="grid gap-3 sm:grid-cols-2">
      {text('priority', 'Priority', '-100 to 100; higher values start earlier. Default: 0.', 'priority', true)}
      {text('delay', 'Delay in seconds', 'The run is queued after this time.', 'delay_seconds', true)}
      {text('key', 'Ordering key', 'Runs with the same key run one at a time, in order.', 'ordering_key')}
      {text('fairness', 'Fairness key', 'Runs with different keys share the starts of a lane.', 'fairness_key')}
      {text('tags', 'Tags', 'Separated by spaces, such as nightly customer=7.', 'tags')}
      {text('webhook', 'Webhook URL', 'Called when the run ends.', 'webhook_url')}
      <Check label="Hold until a person approves the start" checked={options.hold} onChange={(event) => onChange({ ...options, hold: event.target.checked })} />
    </div>
  )
}
