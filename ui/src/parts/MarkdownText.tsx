/* Markdown from models as elements. Raw HTML is dropped, images are links, links name their host. */
import type { ReactNode } from 'react'
import Markdown from 'react-markdown'
import remarkGfm from 'remark-gfm'
import { namesHost, visible } from '@/format/text'

const SAFE = new Set(['http:', 'https:', 'mailto:'])

export function safeUrl(href: string | undefined): URL | null {
  try {
    const url = new URL(href ?? '')
    return SAFE.has(url.protocol) ? url : null
  } catch {
    return null
  }
}

function SafeLink({ href, children }: { href?: string; children?: ReactNode }) {
  const url = safeUrl(href)
  if (url === null) return <span>{children}</span>
  const host = url.protocol === 'mailto:' ? url.pathname : url.host
  const named = typeof children === 'string' && namesHost(children, url)
  return (
    <a href={url.href} target="_blank" rel="noopener noreferrer" className="text-accent underline">
      {children}
      {!named && <span className="text-faint"> ({host})</span>}
    </a>
  )
}

export default function MarkdownText({ text }: { text: string }) {
  return (
    <div className="flex flex-col gap-2 break-words [&_code]:rounded-sm [&_code]:bg-sunken [&_code]:px-1 [&_code]:font-mono [&_code]:text-xs [&_h1]:text-lg [&_h1]:font-semibold [&_h2]:text-base [&_h2]:font-semibold [&_h3]:font-semibold [&_li]:ml-4 [&_ol]:list-decimal [&_pre]:overflow-x-auto [&_pre]:rounded-md [&_pre]:bg-sunken [&_pre]:p-2 [&_td]:border [&_td]:border-line [&_td]:px-2 [&_th]:border [&_th]:border-line [&_th]:px-2 [&_ul]:list-disc">
      <Markdown
        remarkPlugins={[remarkGfm]}
        skipHtml
        components={{
          a: SafeLink,
          // Loading an image would send a request to a host that the author of the text chose.
          img: ({ src, alt }) => <SafeLink href={typeof src === 'string' ? src : undefined}>{`image: ${alt ?? ''}`}</SafeLink>,
        }}
      >
        {visible(text)}
      </Markdown>
    </div>
  )
}
