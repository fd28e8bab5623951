/* Answer a question in place. */
import { MessageSquareReply } from 'lucide-react'
import { useState } from 'react'
import type { Question } from '@/api/types'
import { useSession } from '@/app/session'
import { Button } from '@/parts/Button'
import { AnswerDialog } from './AnswerDialog'
import { capOf } from './budget'
import { BudgetForm } from './BudgetForm'

export function AnswerButton({ question }: { question: Question }) {
  const [open, setOpen] = useState(false)
  const { may, platformAdmin } = useSession()
  if (!may('runs:write')) return null
  const refused = question.answerable_by === 'platform' && !platformAdmin ? 'Only platform admins may answer this question.' : null
  const cap = capOf(question)
  if (cap !== null) return <BudgetForm question={question} cap={cap} refused={refused} />
  return (
    <>
      <Button small look="main" icon={MessageSquareReply} refused={refused} onClick={() => setOpen(true)}>
        Answer
      </Button>
      {open && <AnswerDialog question={question} onClose={() => setOpen(false)} />}
    </>
  )
}
