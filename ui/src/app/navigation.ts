/* The pages of the dashboard: title, path, permission and shortcut. Items that the key may not use are absent. */
import {
  Activity,
  BookOpen,
  Bot,
  Brain,
  CalendarClock,
  Coins,
  Gauge,
  HeartPulse,
  Inbox,
  KeyRound,
  type LucideIcon,
  MessagesSquare,
  Rows3,
  Server,
  Skull,
  Users,
  Waypoints,
  Webhook,
} from 'lucide-react'

export interface NavigationItem {
  path: string
  title: string
  icon: LucideIcon
  /** One of these permissions is needed; none means any key. */
  needs: string[]
  /** The second key after `g`. */
  key?: string
}

export const NAVIGATION: NavigationItem[][] = [
  [
    { path: '/', title: 'Overview', icon: Gauge, needs: ['runs:read'], key: 'o' },
    { path: '/runs', title: 'Runs', icon: Activity, needs: ['runs:read'], key: 'r' },
    { path: '/inbox', title: 'Inbox', icon: Inbox, needs: ['runs:read'], key: 'i' },
    { path: '/chat', title: 'Chat', icon: MessagesSquare, needs: ['runs:read'], key: 'c' },
    { path: '/dead-letters', title: 'Dead letters', icon: Skull, needs: ['runs:read'], key: 'd' },
  ],
  [
    { path: '/definitions', title: 'Definitions', icon: BookOpen, needs: ['runs:read'], key: 'f' },
    { path: '/memories', title: 'Memories', icon: Brain, needs: ['memory:read'], key: 'm' },
    { path: '/threads', title: 'Threads', icon: Waypoints, needs: ['runs:read'], key: 't' },
    { path: '/schedules', title: 'Schedules', icon: CalendarClock, needs: ['runs:read'], key: 's' },
    { path: '/webhooks', title: 'Webhooks', icon: Webhook, needs: ['runs:read'], key: 'h' },
  ],
  [
    { path: '/lanes', title: 'Lanes', icon: Rows3, needs: ['workers:view'], key: 'l' },
    { path: '/workers', title: 'Workers', icon: Server, needs: ['workers:view'], key: 'w' },
    { path: '/usage', title: 'Usage', icon: Coins, needs: ['runs:read'], key: 'u' },
    { path: '/access', title: 'Access', icon: Users, needs: ['keys:manage', 'audit:read'], key: 'a' },
    { path: '/secrets', title: 'Secrets', icon: KeyRound, needs: ['secrets:manage'], key: 'k' },
    { path: '/system', title: 'System', icon: HeartPulse, needs: ['workers:view'], key: 'y' },
  ],
]

export const BOT = Bot

export function allowedItems(may: (permission: string) => boolean): NavigationItem[][] {
  return NAVIGATION.map((group) => group.filter((item) => item.needs.length === 0 || item.needs.some(may))).filter((group) => group.length > 0)
}
