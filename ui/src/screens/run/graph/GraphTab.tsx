import type { Run } from '@/api/types'
import type { RunStore } from '../model/store'

export default function GraphTab(_props: { run: Run; store: RunStore; selected: string | null; onSelect: (id: string | null) => void }) {
  return null
}
