/* A chat with the graph "travel": its messages as they are written, its question with buttons, and its errors.

   The thread is part of the address, so a page that is loaded again continues where it was. */
import { useStream } from '@langchain/langgraph-sdk/react'
import { useState } from 'react'
import { createRoot } from 'react-dom/client'

const key = 'thread'

function useThread() {
  const [thread, setThread] = useState(() => new URLSearchParams(location.search).get(key))
  const remember = (id) => {
    history.replaceState(null, '', `?${key}=${id}`)
    setThread(id)
  }
  return [thread, remember]
}

function Question({ question, answer }) {
  return (
    <section aria-label="Question">
      <p>{question.question}</p>
      {question.options.map((option) => (
        <button key={option} onClick={() => answer(option)}>
          {option}
        </button>
      ))}
    </section>
  )
}

function Chat() {
  const [thread, remember] = useThread()
  const [text, setText] = useState('')
  const stream = useStream({
    apiUrl: location.origin,
    assistantId: 'travel',
    messagesKey: 'messages',
    threadId: thread,
    onThreadId: remember,
    reconnectOnMount: true,
    // Read the state again after each run: it says whether the question is answered.
    fetchStateHistory: true,
  })
  const send = (event) => {
    event.preventDefault()
    const messages = [{ type: 'human', content: text }]
    stream.submit({ messages }, { optimisticValues: (before) => ({ messages: [...(before?.messages ?? []), ...messages] }) })
    setText('')
  }
  const question = stream.interrupt?.value
  return (
    <>
      <h1>Travel chat</h1>
      <ol aria-label="Messages">
        {stream.messages
          .filter((message) => message.type !== 'system')
          .map((message, index) => (
            <li key={message.id ?? index} className={message.type}>
              {message.content}
            </li>
          ))}
      </ol>
      {question === undefined ? null : (
        <Question question={question} answer={(resume) => stream.submit(undefined, { command: { resume } })} />
      )}
      {stream.error == null ? null : <p role="alert">{String(stream.error?.message ?? stream.error)}</p>}
      <form onSubmit={send}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        <button disabled={text === '' || stream.isLoading}>Send</button>
      </form>
      <p role="status">{stream.isLoading ? 'The assistant is writing.' : 'Ready.'}</p>
    </>
  )
}

createRoot(document.getElementById('root')).render(<Chat />)
