/* An edge with its label. The label has a halo instead of a measured box, which would lay out the page once per edge. */
import { type Edge, type EdgeProps, getSmoothStepPath, Position } from '@xyflow/react'
import { memo } from 'react'

export const RouteEdge = memo(function RouteEdge({ sourceX, sourceY, targetX, targetY, data, markerEnd, style }: EdgeProps<Edge<{ label: string }>>) {
  const [path, x, y] = getSmoothStepPath({ sourceX, sourceY, sourcePosition: Position.Bottom, targetX, targetY, targetPosition: Position.Top })
  const label = data?.label ?? ''
  return (
    <>
      <path d={path} fill="none" className="react-flow__edge-path" style={style} markerEnd={markerEnd} />
      {label !== '' && (
        <text x={x} y={y} dy="0.35em" textAnchor="middle" className="fill-soft stroke-surface text-2xs [paint-order:stroke] [stroke-linejoin:round] [stroke-width:4px]">
          {label}
        </text>
      )}
    </>
  )
})
