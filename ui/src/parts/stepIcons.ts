/* An icon for each type of step. */
import { Bot, Braces, CircleHelp, CircleStop, FileJson, GitBranch, GitMerge, type LucideIcon, MessageSquare, Printer, Repeat, Split, Timer, User, Workflow, Wrench, Wand2 } from 'lucide-react'

export const STEP_ICONS: Record<string, LucideIcon> = {
  llm: MessageSquare, agent: Bot, model: MessageSquare, tool: Wrench, human: User, question: User, wait: Timer, parallel: Split, loop: Repeat,
  orchestration: Workflow, if_else: GitBranch, switch: GitBranch, evaluator: CircleHelp, task: Braces, transform: Wand2, merge: GitMerge,
  print: Printer, extract_json: FileJson, end: CircleStop,
}
