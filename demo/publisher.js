'use strict'
// Publishes numbered payloads without waiting for each ack, at a steady pace while a node serves. A payload that was
// not acked is published again under a new id, for ever: an error or a timeout means "unknown", never "not stored".
//
// Flags: --urls URL,URL --cluster ID --channel NAME --ledger FILE --rate PER_SECOND
// Commands on standard input: `drain` (no new payloads; exit when all are acked), `stop` (exit now).

const { Ledger, Session, finish, flags, sha1, talk } = require('./common')

const ACK_TIMEOUT_MS = 2000
// An attempt whose callback never came (its connection was replaced) counts as unacked after this.
const FORGOTTEN_AFTER_MS = ACK_TIMEOUT_MS + 1000
const MAX_OUTSTANDING = 8192
const TICK_MS = 1
// No ack for this long: nobody serves. Probe gently instead of filling a void; the first ack restores the pace.
const SILENCE_MS = 250
const PROBE_RATE = 200
const MAX_BURST_MS = 50
const PADDING = 'x'.repeat(160)

const options = flags()
const rate = Number(options.rate)
const ledger = new Ledger(options.ledger)
const outstanding = new Map() // id -> { number, attempt, sentAt }
const retries = [] // { number, attempt } to be published next
let nextNumber = 1
let published = 0
let acked = 0
let lastAckAt = -Infinity
let draining = false
let finalNumber = 0 // the payload that is published when all others are acked
let lastId = ''

function publish (client, number, attempt) {
  const id = `${number}.${attempt}`
  const payload = Buffer.from(JSON.stringify({ id, number, attempt, padding: PADDING }))
  const sentAt = performance.now()
  outstanding.set(id, { number, attempt, sentAt })
  published += 1
  const guid = client.publish(options.channel, payload, (error, ackGuid) => {
    if (error) {
      ledger.write('error', { by: 'publisher', id, guid: String(ackGuid ?? ''), text: String(error) })
      retry(id)
    } else {
      onAck(id, ackGuid, sentAt)
    }
  })
  ledger.write('publish', { id, number, attempt, guid: String(guid ?? ''), size: payload.length, sha1: sha1(payload) })
}

function onAck (id, guid, sentAt) {
  lastAckAt = performance.now()
  acked += 1
  ledger.write('ack', { id, guid: String(guid), latency_us: Math.round((lastAckAt - sentAt) * 1000) })
  const entry = outstanding.get(id)
  outstanding.delete(id)
  if (entry && entry.number === finalNumber) {
    lastId = id
    shutDown()
  }
}

function retry (id) {
  const entry = outstanding.get(id)
  if (!entry) return
  outstanding.delete(id)
  retries.push({ number: entry.number, attempt: entry.attempt + 1 })
}

function retryForgotten () {
  const oldest = performance.now() - FORGOTTEN_AFTER_MS
  for (const [id, entry] of outstanding) {
    if (entry.sentAt > oldest) break // a Map keeps the order of publishing
    ledger.write('error', { by: 'publisher', id, guid: '', text: 'no callback for this publish' })
    retry(id)
  }
}

/** The next payload to publish, or undefined when there is nothing to do now. */
function next () {
  if (retries.length > 0) return retries.shift()
  if (!draining) return { number: nextNumber++, attempt: 1 }
  if (outstanding.size > 0 || finalNumber > 0) return undefined
  finalNumber = nextNumber++
  return { number: finalNumber, attempt: 1 }
}

let credit = 0
let tickedAt = performance.now()

function tick () {
  const now = performance.now()
  const pace = now - lastAckAt < SILENCE_MS ? rate : PROBE_RATE
  credit = Math.min(credit + pace * (now - tickedAt) / 1000, Math.max(1, pace * MAX_BURST_MS / 1000))
  tickedAt = now
  const client = session.client
  while (client && credit >= 1 && outstanding.size < MAX_OUTSTANDING) {
    const payload = next()
    if (!payload) break
    credit -= 1
    publish(client, payload.number, payload.attempt)
  }
}

const session = new Session(
  { ...options, client: 'demo-publisher', more: { ackTimeout: ACK_TIMEOUT_MS, maxPubAcksInflight: 2 * MAX_OUTSTANDING } },
  {
    onConnect: () => {},
    onError: (text) => ledger.write('error', { by: 'publisher', id: '', guid: '', text })
  }
)
const timers = [setInterval(tick, TICK_MS), setInterval(retryForgotten, SILENCE_MS)]
const tell = talk(
  { drain: () => { draining = true }, stop: shutDown },
  () => ({ published, acked, outstanding: outstanding.size + retries.length, last_id: lastId })
)

let ending = false
function shutDown () {
  if (ending) return
  ending = true
  timers.forEach(clearInterval)
  finish(session, ledger, tell)
}
