/* The turns of a conversation, made from its messages. */
import type { components } from '@/api/schema'

type Message = components['schemas']['ChatMessage']

export interface TurnMessages {
  turn: number
  runId: string
  user: Message | null
  answer: Message | null
}

/** The messages of each turn; turns are in the order in which they were accepted. */
export function turnsOf(messages: Message[]): TurnMessages[] {
  const turns = new Map<number, TurnMessages>()
  for (const message of messages) {
    const turn = turns.get(message.turn) ?? { turn: message.turn, runId: message.run_id, user: null, answer: null }
    if (message.role === 'user') turn.user = message
    else turn.answer = message
    turns.set(message.turn, turn)
  }
  return [...turns.values()].sort((a, b) => a.turn - b.turn)
}
