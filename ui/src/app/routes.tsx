/* Addresses and their pages. Pages other than the lists are loaded when they are opened. */
import { type ComponentType, lazy, type LazyExoticComponent, Suspense } from 'react'
import { Route, Switch } from 'wouter'
import { ErrorBoundary } from '@/parts/ErrorBoundary'
import { Skeleton } from '@/parts/Loading'
import { OverviewPage } from '@/screens/overview/OverviewPage'
import { RunsPage } from '@/screens/runs/RunsPage'
import { AHEAD, match } from './ahead'
import { NotFound } from './NotFound'
import { Allowed } from './Allowed'

type Load = () => Promise<{ default: ComponentType }>

/** A page whose code is loaded when it is opened; `load` loads it ahead. */
function paged(load: Load): LazyExoticComponent<ComponentType> & { load: Load } {
  return Object.assign(lazy(load), { load })
}

const RunPage = paged(() => import('@/screens/run/RunPage'))
const BulkJobPage = paged(() => import('@/screens/runs/BulkJobPage'))
const StartPage = paged(() => import('@/screens/start/StartPage'))
const InboxPage = paged(() => import('@/screens/inbox/InboxPage'))
const ChatPage = paged(() => import('@/screens/chat/ChatPage'))
const LanesPage = paged(() => import('@/screens/lanes/LanesPage'))
const LanePage = paged(() => import('@/screens/lanes/LanePage'))
const WorkersPage = paged(() => import('@/screens/workers/WorkersPage'))
const DeadLettersPage = paged(() => import('@/screens/deadLetters/DeadLettersPage'))
const DeadLetterPage = paged(() => import('@/screens/deadLetters/DeadLetterPage'))
const SchedulesPage = paged(() => import('@/screens/schedules/SchedulesPage'))
const SchedulePage = paged(() => import('@/screens/schedules/SchedulePage'))
const WebhooksPage = paged(() => import('@/screens/webhooks/WebhooksPage'))
const EndpointPage = paged(() => import('@/screens/webhooks/EndpointPage'))
const DefinitionsPage = paged(() => import('@/screens/definitions/DefinitionsPage'))
const DefinitionPage = paged(() => import('@/screens/definitions/DefinitionPage'))
const EditorPage = paged(() => import('@/screens/definitions/editor/EditorPage'))
const MemoriesPage = paged(() => import('@/screens/memory/MemoriesPage'))
const MemoryPage = paged(() => import('@/screens/memory/MemoryPage'))
const ThreadsPage = paged(() => import('@/screens/threads/ThreadsPage'))
const ThreadPage = paged(() => import('@/screens/threads/ThreadPage'))
const UsagePage = paged(() => import('@/screens/usage/UsagePage'))
const SecretsPage = paged(() => import('@/screens/secrets/SecretsPage'))
const AccessPage = paged(() => import('@/screens/access/AccessPage'))
const SystemPage = paged(() => import('@/screens/system/SystemPage'))

interface RouteEntry {
  path: string
  /** One of these permissions is needed. */
  needs: string[]
  page: ComponentType & { load?: Load }
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
    void route.page.load?.()
    AHEAD[route.path]?.(params, search)
    return
  }
}

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
