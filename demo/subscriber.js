'use strict'
// The common half of the durable consumer and the reader: subscribe, record every message, subscribe again after each
// loss, and end when everything up to a given id has been seen. What is recorded is the caller's.

const { Ledger, Seen, Session, finish, flags, idOf, sha1, talk } = require('./common')

// The runner names the last id after it was delivered, as a rule: so many are remembered.
const REMEMBERED = 4096

/**
 * name: the client id. configure(subscriptionOptions): start position, acks. record(ledger, message, id, sha1).
 * Flags: --urls URL,URL --cluster ID --channel NAME --ledger FILE, and the caller's own.
 * Commands on standard input: `until ID` (exit when ID and all before it were seen), `stop` (exit now).
 */
function run ({ name, configure, record }) {
  const options = flags()
  const ledger = new Ledger(options.ledger)
  const seen = new Seen()
  let received = 0
  const recent = new Map() // id -> sequence
  let untilId = null

  const onError = (text) => ledger.write('error', { by: name, id: '', guid: '', text })

  function onMessage (message) {
    const bytes = message.getRawData()
    const sequence = message.getSequence()
    const id = idOf(bytes)
    received += 1
    seen.add(sequence)
    recent.set(id, sequence)
    if (recent.size > REMEMBERED) recent.delete(recent.keys().next().value)
    record(ledger, message, id, sha1(bytes))
    endWhenComplete()
  }

  function endWhenComplete () {
    if (untilId !== null && seen.upTo >= (recent.get(untilId) ?? Infinity)) shutDown()
  }

  function subscribe (client) {
    const subscription = client.subscribe(options.channel, configure(client.subscriptionOptions()))
    subscription.on('message', onMessage)
    subscription.on('error', (error) => {
      onError(`subscribe: ${error}`)
      // A timed-out request may have been carried out: only a new connection leaves no second subscription behind.
      session.restart()
    })
  }

  const session = new Session({ ...options, client: name, more: {} }, { onConnect: subscribe, onError })
  const tell = talk(
    {
      until: (id) => { untilId = id; endWhenComplete() },
      stop: shutDown
    },
    () => ({ received, up_to: seen.upTo })
  )

  let ending = false
  function shutDown () {
    if (ending) return
    ending = true
    finish(session, ledger, tell)
  }
}

module.exports = { run }
