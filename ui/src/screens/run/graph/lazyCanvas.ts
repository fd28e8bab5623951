/* The canvas of graphs, loaded when a graph is shown. */
import { lazily } from '@/parts/lazily'

export type { GraphStep, InnerLink } from './GraphCanvas'
export const GraphCanvas = lazily(() => import('./GraphCanvas'))
