/* A defect in one panel must not take the page. */
import { Component, type ReactNode } from 'react'

interface State {
  error: Error | null
}

export class ErrorBoundary extends Component<{ name: string; children: ReactNode }, State> {
  override state: State = { error: null }

  static getDerivedStateFromError(error: Error): State {
    return { error }
  }

  override render(): ReactNode {
    const { error } = this.state
    if (error === null) return this.props.children
    return (
      <div role="alert" className="p-3">
        <p className="font-medium text-bad">{this.props.name} cannot be shown.</p>
        <p className="mt-1 font-mono text-xs break-words text-soft">{error.message}</p>
        <button type="button" className="mt-2 underline" onClick={() => this.setState({ error: null })}>
          Try again
        </button>
      </div>
    )
  }
}
