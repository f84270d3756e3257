'use strict'
// Drives node-nats-streaming for tests/compat/test_node_client.py. It knows the client's public API only and judges
// nothing: each line on standard input is a command, each line on standard output its result or something that happened.
//
// Command: {"id": n, "op": name, ...}. Result: {"id": n, "value": v} or {"id": n, "error": text}.
// Happened: {"event": name, "of": connection or subscription, ...}.

const readline = require('node:readline')
const stan = require('node-nats-streaming')

const connections = new Map()
const subscriptions = new Map() // name -> { subscription, messages: Map of sequence -> message }

function write (line) {
  process.stdout.write(JSON.stringify(line) + '\n')
}

/** Settle with the first of the events: `good` resolves, 'error' and 'timeout' reject. */
function first (emitter, good) {
  return new Promise((resolve, reject) => {
    emitter.once(good, () => resolve(true))
    emitter.once('error', reject)
    emitter.once('timeout', reject)
  })
}

function configure (options, wanted) {
  const { durable, manualAcks, ackWait, maxInFlight, all, last, sequence, delta } = wanted
  if (durable !== undefined) options.setDurableName(durable)
  if (manualAcks) options.setManualAckMode(true)
  if (ackWait !== undefined) options.setAckWait(ackWait)
  if (maxInFlight !== undefined) options.setMaxInFlight(maxInFlight)
  if (all) options.setDeliverAllAvailable()
  if (last) options.setStartWithLastReceived()
  if (sequence !== undefined) options.setStartAtSequence(sequence)
  if (delta !== undefined) options.setStartAtTimeDelta(delta)
  return options
}

const operations = {
  async connect ({ as, cluster, client, servers, options }) {
    // Without `url` the client adds localhost:4222 to the servers: whoever listens there would be asked as well.
    const connection = stan.connect(cluster, client, {
      url: servers[0], servers, maxReconnectAttempts: -1, reconnectTimeWait: 50, ...options
    })
    await first(connection, 'connect')
    connections.set(as, connection)
    connection.on('error', (error) => write({ event: 'error', of: as, text: String(error) }))
    connection.on('connection_lost', (error) => write({ event: 'lost', of: as, text: String(error) }))
    connection.on('reconnect', () => write({ event: 'reconnect', of: as }))
  },

  async close ({ of }) {
    const connection = connections.get(of)
    const closed = first(connection, 'close')
    connection.close()
    await closed
  },

  /** Publish all without waiting in between; gives [guid, guid of the ack, error text or null] for each. */
  async publish ({ by, channel, payloads }) {
    const connection = connections.get(by)
    return Promise.all(payloads.map((payload) => new Promise((resolve) => {
      const guid = connection.publish(channel, payload, (error, ackGuid) => {
        resolve([guid, ackGuid, error ? String(error.message ?? error) : null])
      })
    })))
  },

  async subscribe ({ by, as, channel, group, options }) {
    const connection = connections.get(by)
    const configured = configure(connection.subscriptionOptions(), options)
    const subscription = group
      ? connection.subscribe(channel, group, configured)
      : connection.subscribe(channel, configured)
    const messages = new Map()
    subscription.on('message', (message) => {
      const sequence = message.getSequence()
      messages.set(sequence, message)
      write({
        event: 'message',
        of: as,
        sequence,
        data: message.getData(),
        redelivered: message.isRedelivered(),
        time: message.getTimestamp().getTime()
      })
    })
    await first(subscription, 'ready')
    subscriptions.set(as, { subscription, messages })
  },

  async ack ({ of, sequences }) {
    const { messages } = subscriptions.get(of)
    sequences.forEach((sequence) => messages.get(sequence).ack())
  },

  async closeSubscription ({ of }) {
    const { subscription } = subscriptions.get(of)
    const closed = first(subscription, 'closed')
    subscription.close()
    await closed
  },

  async unsubscribe ({ of }) {
    const { subscription } = subscriptions.get(of)
    const gone = first(subscription, 'unsubscribed')
    subscription.unsubscribe()
    await gone
  }
}

const lines = readline.createInterface({ input: process.stdin })
lines.on('line', async (line) => {
  const command = JSON.parse(line)
  try {
    write({ id: command.id, value: (await operations[command.op](command)) ?? null })
  } catch (error) {
    write({ id: command.id, error: String(error?.message ?? error) })
  }
})
lines.on('close', () => process.exit(0))
