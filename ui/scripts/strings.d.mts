export function collect(source: string): string[]
export function translated(source: string, translations: Record<string, string>): string
