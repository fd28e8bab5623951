/* The kinds of definitions: how the API names them, and what they are for. */
import { Bot, type LucideIcon, Plug, Webhook, Workflow, Wrench } from 'lucide-react'

export const KINDS = {
  orchestrations: { one: 'orchestration', title: 'Orchestrations', icon: Workflow as LucideIcon, about: 'An orchestration is a graph of steps. Each step that has ended is recorded and never runs again.' },
  agents: { one: 'agent', title: 'Agents', icon: Bot as LucideIcon, about: 'An agent is a model with instructions and tools that works until it has an answer.' },
  tools: { one: 'tool', title: 'Tools', icon: Wrench as LucideIcon, about: 'A tool is something that an agent may call: a task, an HTTP request, a script or another run.' },
  'mcp-servers': { one: 'mcp_server', title: 'MCP servers', icon: Plug as LucideIcon, about: 'An MCP server offers tools over the Model Context Protocol.' },
  triggers: { one: 'trigger', title: 'Triggers', icon: Webhook as LucideIcon, about: 'A trigger starts a run when an event of its name arrives.' },
} as const

export type Kind = keyof typeof KINDS
export type OneKind = (typeof KINDS)[Kind]['one']

export function isKind(text: string): text is Kind {
  return text in KINDS
}

/** The fields of a sync request and of a list have these names. */
export const LIST_FIELDS: Record<Kind, 'orchestrations' | 'agents' | 'tools' | 'mcp_servers' | 'triggers'> = {
  orchestrations: 'orchestrations',
  agents: 'agents',
  tools: 'tools',
  'mcp-servers': 'mcp_servers',
  triggers: 'triggers',
}

/** What runs of a definition are called; null for kinds that runs do not execute. */
export function targetOfDefinition(kind: Kind, id: string): string | null {
  if (kind === 'orchestrations') return `orchestration:${id}`
  return kind === 'agents' ? `agent:${id}` : null
}

/** The source of definitions that were edited here. */
export const EDITOR_SOURCE = 'dashboard'
