/* A small bar for each value; the numbers are in its title. */
import { cx } from './classes'

export function Sparkline({ values, label, width = 84, height = 20, tone = 'bad' }: { values: number[]; label: string; width?: number; height?: number; tone?: 'bad' | 'busy' }) {
  const most = Math.max(1, ...values)
  const step = width / Math.max(1, values.length)
  return (
    <svg role="img" aria-label={`${label}: ${values.join(', ')}`} width={width} height={height} className="inline-block align-middle text-faint">
      <title>{`${label}: ${values.join(', ')}`}</title>
      {values.map((value, index) => {
        const size = value === 0 ? 1 : Math.max(2, (value / most) * height)
        return <rect key={index} x={index * step} y={height - size} width={Math.max(1, step - 1)} height={size} fill="currentColor" className={cx(value === 0 ? 'text-line-strong' : tone === 'bad' ? 'text-bad' : 'text-busy')} />
      })}
    </svg>
  )
}
