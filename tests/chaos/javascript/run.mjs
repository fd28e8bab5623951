/* Run every check with every version of the unmodified SDK against one address, and report each as a line of JSON.

   A check may ask the test to do something to the servers: a line with `ask`, which the test answers with a line. */
import { createInterface } from 'node:readline'

import { Client as Newest } from '@langchain/langgraph-sdk'
import { Client as Two } from 'langgraph-sdk-2'

import { nativeChecks } from './native.mjs'
import { resourceChecks } from './resources.mjs'
import { runChecks } from './runs.mjs'
import { threadStreamChecks } from './thread-streams.mjs'

const [url, only] = process.argv.slice(2)
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const report = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)

async function ask(what, detail) {
  report({ ask: what, detail })
  await answers.next()
}

async function check(sdk, Client, name, body) {
  const requests = []
  const plain = new Client({ apiUrl: url, apiKey: null })
  const client = new Client({
    apiUrl: url,
    apiKey: null,
    onRequest: (address, init) => {
      const path = new URL(address).pathname
      requests.push({ path, headers: init.headers })
      // A connection for each request, so that the balancer chooses a replica each time. A stream keeps the default:
      // Node takes the loss of a connection that is to be closed for the end of the response.
      const streams = /\/stream(\/events)?$/.test(path)
      return streams ? init : { ...init, headers: { ...init.headers, connection: 'close' } }
    },
  })
  try {
    await body(client, { ask, requests, plain, unique: `${sdk}-${name}`.replaceAll(/[^a-z0-9]+/gi, '-') })
    report({ sdk, check: name })
  } catch (error) {
    report({ sdk, check: name, problem: String(error?.stack ?? error) })
  }
}

const shared = { ...resourceChecks, ...runChecks }
const newest = { ...shared, ...threadStreamChecks, ...nativeChecks }
// `streams` are the checks in which events arrive live, with the newest version alone.
const versions =
  only === 'streams'
    ? [['1.12', Newest, { ...runChecks, ...threadStreamChecks }]]
    : [
        ['1.12', Newest, newest],
        ['2.0', Two, shared],
      ]
for (const [sdk, Client, checks] of versions) {
  for (const [name, body] of Object.entries(checks)) await check(sdk, Client, name, body)
}
report({ done: true })
process.exit(0)
