/* Addresses and their pages. Pages other than the lists are loaded when they are opened. */
import { type ComponentType, lazy, Suspense } from 'react'
import { Route, Switch } from 'wouter'
import { ErrorBoundary } from '@/parts/ErrorBoundary'
import { Skeleton } from '@/parts/Loading'
import { OverviewPage } from '@/screens/overview/OverviewPage'
import { RunsPage } from '@/screens/runs/RunsPage'
import { NotFound } from './NotFound'
import { Allowed } from './Allowed'

const RunPage = lazy(() => import('@/screens/run/RunPage'))
const BulkJobPage = lazy(() => import('@/screens/runs/BulkJobPage'))
const StartPage = lazy(() => import('@/screens/start/StartPage'))
const InboxPage = lazy(() => import('@/screens/inbox/InboxPage'))
const ChatPage = lazy(() => import('@/screens/chat/ChatPage'))
const LanesPage = lazy(() => import('@/screens/lanes/LanesPage'))
const LanePage = lazy(() => import('@/screens/lanes/LanePage'))
const WorkersPage = lazy(() => import('@/screens/workers/WorkersPage'))
const DeadLettersPage = lazy(() => import('@/screens/deadLetters/DeadLettersPage'))
const DeadLetterPage = lazy(() => import('@/screens/deadLetters/DeadLetterPage'))
const SchedulesPage = lazy(() => import('@/screens/schedules/SchedulesPage'))
const SchedulePage = lazy(() => import('@/screens/schedules/SchedulePage'))
const WebhooksPage = lazy(() => import('@/screens/webhooks/WebhooksPage'))
const EndpointPage = lazy(() => import('@/screens/webhooks/EndpointPage'))
const DefinitionsPage = lazy(() => import('@/screens/definitions/DefinitionsPage'))
const DefinitionPage = lazy(() => import('@/screens/definitions/DefinitionPage'))
const EditorPage = lazy(() => import('@/screens/definitions/editor/EditorPage'))
const MemoriesPage = lazy(() => import('@/screens/memory/MemoriesPage'))
const MemoryPage = lazy(() => import('@/screens/memory/MemoryPage'))
const ThreadsPage = lazy(() => import('@/screens/threads/ThreadsPage'))
const ThreadPage = lazy(() => import('@/screens/threads/ThreadPage'))
const UsagePage = lazy(() => import('@/screens/usage/UsagePage'))
const SecretsPage = lazy(() => import('@/screens/secrets/SecretsPage'))
const AccessPage = lazy(() => import('@/screens/access/AccessPage'))
const SystemPage = lazy(() => import('@/screens/system/SystemPage'))

interface RouteEntry {
  path: string
  /** One of these permissions is needed. */
  needs: string[]
  page: ComponentType
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

export function Routes() {
  return (
    <Suspense fallback={<Skeleton rows={8} />}>
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
    </Suspense>
  )
}
