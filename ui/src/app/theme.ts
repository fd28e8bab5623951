/* The theme: what the system asks for, unless this browser has chosen otherwise. */
import { useEffect } from 'react'
import { usePreference } from './preferences'

export type Theme = 'system' | 'light' | 'dark'

export function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = usePreference<Theme>('theme', 'system')
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)')
    const apply = () => {
      const chosen = theme === 'system' ? (dark.matches ? 'dark' : 'light') : theme
      document.documentElement.dataset.theme = chosen
    }
    apply()
    dark.addEventListener('change', apply)
    return () => dark.removeEventListener('change', apply)
  }, [theme])
  return [theme, setTheme]
}
