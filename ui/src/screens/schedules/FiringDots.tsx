/* The latest firings of a schedule as a row of dots, the newest at the right; failures are squares. */
import type { components } from '@/api/schema'
import { formatExact } from '@/format/time'
import { cx, TONE_FILL } from '@/parts/classes'
import { useZone } from '@/parts/Time'
import { firingStanding } from './firingText'

type Firing = components['schemas']['Firing']

export function FiringDots({ firings }: { firings: Firing[] }) {
  const zone = useZone()
  if (firings.length === 0) return <span className="text-faint">–</span>
  const shown = [...firings].reverse()
  return (
    <span role="img" aria-label={`Latest firings, oldest first: ${shown.map((firing) => firingStanding(firing).word).join(', ')}`} className="inline-flex items-center gap-0.5 align-middle">
      {shown.map((firing) => {
        const { word, tone, hollow } = firingStanding(firing)
        return <span key={`${firing.slot} ${firing.decided_at}`} title={`${formatExact(firing.slot, zone)}: ${word}`} className={cx('size-2 shrink-0', tone === 'bad' ? 'rounded-[1px]' : 'rounded-full', hollow ? 'border-2 border-line-strong' : TONE_FILL[tone])} />
      })}
    </span>
  )
}
