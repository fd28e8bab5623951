/* Addresses and their pages. Pages other than the lists are loaded when they are opened. */
import type { ComponentType } from 'react'
import { Route, Switch } from 'wouter'
import { ErrorBoundary } from '@/parts/ErrorBoundary'
import { lazily } from '@/parts/lazily'
import { OverviewPage } from '@/screens/overview/OverviewPage'
import { RunsPage } from '@/screens/runs/RunsPage'
import { AHEAD, match } from './ahead'
import { NotFound } from './NotFound'
import { Allowed } from './Allowed'

const RunPage = lazily(() => import('@/screens/run/RunPage'))
const BulkJobPage = lazily(() => import('@/screens/runs/BulkJobPage'))
const StartPage = lazily(() => import('@/screens/start/StartPage'))
const InboxPage = lazily(() => import('@/screens/inbox/InboxPage'))
const ChatPage = lazily(() => import('@/screens/chat/ChatPage'))
const LanesPage = lazily(() => import('@/screens/lanes/LanesPage'))
const LanePage = lazily(() => import('@/screens/lanes/LanePage'))
const WorkersPage = lazily(() => import('@/screens/workers/WorkersPage'))
const DeadLettersPage = lazily(() => import('@/screens/deadLetters/DeadLettersPage'))
const DeadLetterPage = lazily(() => import('@/screens/deadLetters/DeadLetterPage'))
const SchedulesPage = lazily(() => import('@/screens/schedules/SchedulesPage'))
const SchedulePage = lazily(() => import('@/screens/schedules/SchedulePage'))
const WebhooksPage = lazily(() => import('@/screens/webhooks/WebhooksPage'))
const EndpointPage = lazily(() => import('@/screens/webhooks/EndpointPage'))
const DefinitionsPage = lazily(() => import('@/screens/definitions/DefinitionsPage'))
const DefinitionPage = lazily(() => import('@/screens/definitions/DefinitionPage'))
const EditorPage = lazily(() => import('@/screens/definitions/editor/EditorPage'))
const MemoriesPage = lazily(() => import('@/screens/memory/MemoriesPage'))
const MemoryPage = lazily(() => import('@/screens/memory/MemoryPage'))
const ThreadsPage = lazily(() => import('@/screens/threads/ThreadsPage'))
const ThreadPage = lazily(() => import('@/screens/threads/ThreadPage'))
const UsagePage = lazily(() => import('@/screens/usage/UsagePage'))
const SecretsPage = lazily(() => import('@/screens/secrets/SecretsPage'))
const AccessPage = lazily(() => import('@/screens/access/AccessPage'))
const SystemPage = lazily(() => import('@/screens/system/SystemPage'))

interface RouteEntry {
  path: string
  /** One of these permissions is needed. */
  needs: string[]
  page: ComponentType & { load?: () => Promise<void> }
}

/** One line for each page. Parameters are read with useParams. */
const ROUTES: RouteEntry[] = [
  { path: '/', needs: ['runs:read'], page: OverviewPage },
  { path: '/runs', needs: ['runs:read'], page: RunsPage },
  { path: '/runs/:runId', needs: ['runs:read'], page: RunPage },
  { path: '/bulk/:jobId', needs: ['runs:read'], page: BulkJobPage },
  { path: '/start', needs: ['runs:write'], page: StartPage },
  { path: '/inbox', needs: ['runs:read'], page: InboxPage },
  { path: '/chat', needs: ['runs:read'], page: ChatPage },
  { path: '/chat/:sessionId', needs: ['runs:read'], page: ChatPage },
  { path: '/lanes', needs: ['workers:view'], page: LanesPage },
  { path: '/lanes/:name', needs: ['workers:view'], page: LanePage },
  { path: '/workers', needs: ['workers:view'], page: WorkersPage },
  { path: '/dead-letters', needs: ['runs:read'], page: DeadLettersPage },
  { path: '/dead-letters/:runId', needs: ['runs:read'], page: DeadLetterPage },
  { path: '/schedules', needs: ['runs:read'], page: SchedulesPage },
  { path: '/schedules/:scheduleId', needs: ['runs:read'], page: SchedulePage },
  { path: '/webhooks', needs: ['runs:read'], page: WebhooksPage },
  { path: '/webhooks/:endpointId', needs: ['runs:read'], page: EndpointPage },
  { path: '/definitions', needs: ['runs:read'], page: DefinitionsPage },
  { path: '/definitions/:kind/:id', needs: ['runs:read'], page: DefinitionPage },
  { path: '/definitions/:kind/:id/edit', needs: ['definitions:write'], page: EditorPage },
  { path: '/memories', needs: ['memory:read'], page: MemoriesPage },
  { path: '/memories/:memoryId', needs: ['memory:read'], page: MemoryPage },
  { path: '/threads', needs: ['runs:read'], page: ThreadsPage },
  { path: '/threads/:threadId', needs: ['runs:read'], page: ThreadPage },
  { path: '/usage', needs: ['runs:read'], page: UsagePage },
  { path: '/secrets', needs: ['secrets:manage'], page: SecretsPage },
  { path: '/access', needs: ['keys:manage', 'audit:read'], page: AccessPage },
  { path: '/system', needs: ['workers:view'], page: SystemPage },
]

/** Load the code of a page, and what it reads first, before the session is known. */
export function readPageAhead(path: string, search: URLSearchParams): void {
  for (const route of ROUTES) {
    const params = match(route.path, path)
    if (params === null) continue
    // A failure is shown by the page, which loads its code again.
    route.page.load?.().catch(() => undefined)
    AHEAD[route.path]?.(params, search)
    return
  }
}

export function Routes() {
  return (
    <Switch>
      {ROUTES.map(({ path, needs, page: Page }) => (
        <Route key={path} path={path}>
          <ErrorBoundary name="This page">
            <Allowed needs={needs}>
              <Page />
            </Allowed>
          </ErrorBoundary>
        </Route>
      ))}
      <Route>
        <NotFound />
      </Route>
    </Switch>
  )
}
