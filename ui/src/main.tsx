/* The entry: styles, the live layer, and the frame with its pages. */
import '@/app/trustedTypes'
import { QueryClientProvider } from '@tanstack/react-query'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { Router } from 'wouter'
import { queryClient } from '@/api/query'
import { writeExactTimes } from '@/app/copiedTimes'
import { Frame } from '@/app/Frame'
import { readPageAhead, Routes } from '@/app/routes'
import { readSessionAhead, SessionGate, watchSession } from '@/app/session'
import { useTheme } from '@/app/theme'
import { LiveLayer } from '@/live/LiveLayer'
import { watchRequests } from '@/live/connection'
import './design/theme.css'

// The server writes <base href>, so the same build works below any prefix.
const base = new URL(document.baseURI).pathname.replace(/\/$/, '')

function Root() {
  useTheme()
  return (
    <QueryClientProvider client={queryClient}>
      <Router base={base}>
        <SessionGate>
          <LiveLayer />
          <Frame>
            <Routes />
          </Frame>
        </SessionGate>
      </Router>
    </QueryClientProvider>
  )
}

watchRequests()
writeExactTimes()
watchSession()
readSessionAhead()
readPageAhead(location.pathname.slice(base.length) || '/', new URLSearchParams(location.search))
createRoot(document.getElementById('root')!).render(
  <StrictMode>
    <Root />
  </StrictMode>,
)
