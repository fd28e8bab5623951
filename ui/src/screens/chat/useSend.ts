/* Send a message. The text stays until the server has stored it; the same text sent twice is one turn. */
import { useMutation } from '@tanstack/react-query'
import { useState } from 'react'
import { type ApiError, toApiError } from '@/api/errors'
import { queryClient } from '@/api/query'
import type { components } from '@/api/schema'
import { asCli } from '@/format/command'
import { type ActionRequest, perform, request } from '@/parts/action/action'
import { newKey } from '@/parts/action/changeKey'

type Sent = components['schemas']['ChatLinks']

export function messageRequest(agent: string, sessionId: string | null, message: string): ActionRequest {
  return request('post', '/api/v2/chat', {
    body: { agent, message, session_id: sessionId },
    cli: asCli('chat', agent, ...(sessionId === null ? [] : ['--session', sessionId]), '--message', message),
  })
}

export function useSend(agent: string, sessionId: string | null, onSent: (sent: Sent) => void) {
  const [key, setKey] = useState(() => newKey())
  return useMutation<Sent, ApiError, string>({
    mutationFn: async (message) => (await perform(messageRequest(agent, sessionId, message), key).catch((error: unknown) => Promise.reject(toApiError(error)))) as Sent,
    onSuccess: (sent) => {
      setKey(newKey())
      void queryClient.invalidateQueries({ predicate: (query) => String(query.queryKey[0]).startsWith('/api/v2/chat') })
      onSent(sent)
    },
    onError: (error) => {
      // A refused message is another one after it was changed; after a lost connection it is the same.
      if (!error.offline) setKey(newKey())
    },
  })
}
