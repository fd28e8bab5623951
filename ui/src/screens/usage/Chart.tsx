/* A chart on a canvas. The same numbers are in a table below it, for everyone who cannot see the picture. */
import { useEffect, useRef } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'

interface ChartProps {
  label: string
  /** Seconds since 1970. */
  times: number[]
  values: number[]
  format: (value: number) => string
}

const HEIGHT = 180

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim()
}

export default function Chart({ label, times, values, format }: ChartProps) {
  const host = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const element = host.current
    if (element === null) return
    const draw = () => {
      const axis = { stroke: colour('--soft'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') }, font: '11px system-ui' }
      return new uPlot(
        {
          width: Math.max(240, element.clientWidth),
          height: HEIGHT,
          legend: { show: false },
          cursor: { y: false },
          scales: { y: { range: (_plot, _low, high) => [0, high <= 0 ? 1 : high * 1.1] } },
          axes: [axis, { ...axis, size: 64, values: (_plot, ticks) => ticks.map(format) }],
          series: [{}, { label, stroke: colour('--accent'), fill: colour('--accent-soft'), paths: uPlot.paths.bars!({ size: [0.7, 60] }), points: { show: false } }],
        },
        [times, values],
        element,
      )
    }
    let plot = draw()
    const redraw = () => {
      plot.destroy()
      plot = draw()
    }
    const size = new ResizeObserver(() => plot.setSize({ width: Math.max(240, element.clientWidth), height: HEIGHT }))
    size.observe(element)
    const theme = new MutationObserver(redraw)
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] })
    return () => {
      size.disconnect()
      theme.disconnect()
      plot.destroy()
    }
  }, [label, times, values, format])
  return <div ref={host} role="img" aria-label={label} className="w-full" />
}
