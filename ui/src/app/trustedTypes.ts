/* Trusted Types: the browser refuses strings that would become markup or code. The page needs one exception: the
address of its own worker. Browsers without Trusted Types ignore this and have the rest of the policy. */

interface TrustedTypes {
  createPolicy: (name: string, rules: { createScriptURL: (address: string) => string }) => unknown
}

const { trustedTypes } = globalThis as { trustedTypes?: TrustedTypes }

trustedTypes?.createPolicy('default', {
  createScriptURL: (address) => {
    const assets = new URL('assets/', document.baseURI)
    if (new URL(address, document.baseURI).href.startsWith(assets.href)) return address
    throw new TypeError(`The page loads scripts of ${assets.href} only.`)
  },
})
