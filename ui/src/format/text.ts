/* Text from models, tools and tenants is shown as text; characters that deceive the eye become visible. */

// Control characters except tab and line feed, bidirectional controls, zero-width characters, lone surrogates.
const DECEPTIVE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g
// eslint-disable-next-line no-control-regex
const TERMINAL = /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g

export function visible(text: string): string {
  return text
    .replace(/\r\n/g, '\n')
    .replace(TERMINAL, '')
    .replace(DECEPTIVE, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

export function oneLine(text: string, limit = 200): string {
  const line = visible(text.slice(0, limit * 2)).replace(/\s+/g, ' ').trim()
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line
}

/** The part of an id that differs between runs: ids begin with their time. */
export function shortId(id: string): string {
  const bare = id.replace(/^[a-z]+_/, '')
  return bare.length <= 10 ? bare : bare.slice(-8)
}

/** A signature as people write it: Python quotes annotations that are not evaluated. */
export function signatureText(signature: string): string {
  return signature.replace(/: (["'])(.*?)\1(?=[,)= ])/g, ': $2')
}

/** Whether the text of a link names the host of its address. A part of another name does not: bank.com contains k.com. */
export function namesHost(text: string, url: URL): boolean {
  const shown = text.trim().toLowerCase()
  if (url.protocol === 'mailto:') return shown.replace(/^mailto:/, '') === url.pathname.toLowerCase()
  const address = shown.replace(/^https?:\/\//, '')
  return address === url.host || ['/', '?', '#'].some((end) => address.startsWith(url.host + end))
}
