'use strict'
// What the demo's three clients share: the ledger's pen, a session that outlives connection losses, and the line
// protocol with the runner. It knows the npm client's public API only and decides nothing about right or wrong.

const crypto = require('node:crypto')
const fs = require('node:fs')
const readline = require('node:readline')
const stan = require('node-nats-streaming')

const FLUSH_EVERY_MS = 50
const STATUS_EVERY_MS = 200
const RETRY_AFTER_MS = 250

/** Microseconds since the Unix epoch. */
function nowUs () {
  return Math.round((performance.timeOrigin + performance.now()) * 1000)
}

function sha1 (bytes) {
  return crypto.createHash('sha1').update(bytes).digest('hex')
}

/** The words `--name value` as an object; every flag of these scripts has a value. */
function flags () {
  const found = {}
  for (let i = 2; i + 1 < process.argv.length; i += 2) found[process.argv[i].replace(/^--/, '')] = process.argv[i + 1]
  return found
}

/** Appends records as JSON lines: buffered, written every 50 ms, synced by close(). */
class Ledger {
  constructor (path) {
    this.fd = fs.openSync(path, 'a')
    this.lines = []
    this.timer = setInterval(() => this.flush(), FLUSH_EVERY_MS)
  }

  write (kind, fields) {
    this.lines.push(JSON.stringify({ kind, t: nowUs(), ...fields }))
  }

  flush () {
    if (this.lines.length === 0) return
    const bytes = Buffer.from(this.lines.join('\n') + '\n')
    this.lines = []
    for (let done = 0; done < bytes.length;) done += fs.writeSync(this.fd, bytes, done)
  }

  close () {
    clearInterval(this.timer)
    this.flush()
    fs.fsyncSync(this.fd)
    fs.closeSync(this.fd)
  }
}

/**
 * One client id that connects again whenever its connection is refused, lost or closed.
 * onConnect(client) is called with each new connection; onError(text) with everything that went wrong.
 */
class Session {
  constructor (options, { onConnect, onError }) {
    this.options = options
    this.onConnect = onConnect
    this.onError = onError
    this.client = null
    this.closing = false
    this.open()
  }

  open () {
    const { cluster, client, urls, more } = this.options
    const connection = stan.connect(cluster, client, {
      // Without a url the library adds its default one to the servers, where a stranger's server may answer.
      url: urls.split(',')[0],
      servers: urls.split(','),
      maxReconnectAttempts: -1,
      reconnectTimeWait: 50,
      reconnectJitter: 10,
      connectTimeout: 2000,
      ...more
    })
    let over = false
    const again = () => {
      if (over || this.closing) return
      over = true
      this.client = null
      setTimeout(() => { if (!this.closing) this.open() }, RETRY_AFTER_MS)
    }
    connection.on('connect', () => {
      if (over || this.closing) return
      this.client = connection
      this.onConnect(connection)
    })
    connection.on('connection_lost', (error) => {
      this.onError(`connection lost: ${error}`)
      again()
    })
    connection.on('error', (error) => {
      this.onError(String(error))
      // An error on a live connection is reported only: the client mends it, or says connection_lost.
      if (this.client !== connection) again()
    })
    connection.on('close', again)
  }

  /** Give up this connection, with its subscriptions, and make a new one. */
  restart () {
    const connection = this.client
    this.client = null
    if (connection) connection.close() // its 'close' event opens the next one
  }

  /** Close for good; done() is called once, after a second at the latest. */
  close (done) {
    this.closing = true
    let called = false
    const once = () => { if (!called) { called = true; done() } }
    setTimeout(once, 1000).unref()
    if (!this.client) return once()
    this.client.on('close', once)
    this.client.close()
  }
}

/** Which sequences have been seen: `upTo` is the highest one below which none is missing. */
class Seen {
  constructor () {
    this.upTo = 0
    this.ahead = new Set()
  }

  add (sequence) {
    if (sequence <= this.upTo) return
    this.ahead.add(sequence)
    while (this.ahead.delete(this.upTo + 1)) this.upTo += 1
  }
}

/**
 * Obey the runner. Each line on standard input is a command with at most one word; the end of the input is `stop`.
 * status() is printed as one JSON line several times a second; the returned function prints it now.
 */
function talk (commands, status) {
  const tell = () => process.stdout.write(JSON.stringify(status()) + '\n')
  process.stdout.on('error', () => process.exit(1)) // the runner is gone
  setInterval(tell, STATUS_EVERY_MS).unref()
  const lines = readline.createInterface({ input: process.stdin })
  lines.on('line', (line) => {
    const [word, value] = line.split(' ')
    commands[word](value)
  })
  lines.on('close', () => commands.stop())
  return tell
}

/** The id inside a payload, or '' where it cannot be read: the judge then finds the acked id missing. */
function idOf (bytes) {
  try {
    return String(JSON.parse(bytes.toString()).id ?? '')
  } catch {
    return ''
  }
}

/** End the process once the session is closed and the ledger synced. */
function finish (session, ledger, tell) {
  session.close(() => {
    ledger.close()
    tell()
    process.exit(0)
  })
}

module.exports = { Ledger, Seen, Session, finish, flags, idOf, sha1, stan, talk }
