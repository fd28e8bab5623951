/// <reference types="vitest/config" />
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import tailwindcss from '@tailwindcss/vite'
import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'
import { inLanguage } from './scripts/strings.mjs'

const version = /^version = "(.+)"$/m.exec(readFileSync(new URL('../pyproject.toml', import.meta.url), 'utf8'))?.[1]
const language = process.env.RUNLANE_UI_LANGUAGE
const server = process.env.RUNLANE_URL ?? 'http://127.0.0.1:8000'

export default defineConfig(({ command }) => ({
  // Assets are addressed relative to <base href>, which the server writes: the UI works below any prefix.
  base: command === 'serve' ? '/ui/' : './',
  define: { __RUNLANE_VERSION__: JSON.stringify(version ?? 'unknown') },
  plugins: [...(language === undefined ? [] : [inLanguage(language)]), react(), tailwindcss()],
  resolve: { alias: { '@': fileURLToPath(new URL('./src', import.meta.url)) } },
  worker: { format: 'es' },
  build: {
    outDir: '../src/runlane/ui_assets',
    emptyOutDir: true,
    sourcemap: false,
    target: 'es2023',
    // The server's Content-Security-Policy has no data: for scripts and fonts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: { output: { hashCharacters: 'hex' } },
  },
  server: { proxy: Object.fromEntries(['/api', '/ready', '/threads', '/assistants'].map((path) => [path, { target: server }])) },
  // A busy machine needs more than the 5 s of the default for a property of many examples.
  test: { include: ['tests/**/*.test.ts'], environment: 'node', testTimeout: 120_000 },
}))
