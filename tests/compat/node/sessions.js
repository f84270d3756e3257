'use strict'
// The client side of the recorded sessions of node-nats-streaming (tests/data/wire, node-*): does what the recorded program
// did and prints what its user sees. Usage: node sessions.js SCRIPT URL

const stan = require('node-nats-streaming')

const [script, url] = process.argv.slice(2)
const CLUSTER = 'test-cluster'
const CLIENT = 'node-client'
const HANG_MS = 55000

function log (line) {
  process.stdout.write(line + '\n')
}

function sleep (ms) {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

function once (emitter, ...events) {
  return new Promise((resolve) => events.forEach((event) => emitter.once(event, resolve)))
}

async function connect (options = {}, client = CLIENT, cluster = CLUSTER) {
  const connection = stan.connect(cluster, client, { url, servers: [url], ...options })
  connection.on('connect', () => log('connected'))
  connection.on('close', () => log('closed'))
  connection.on('error', (error) => log(`error: ${error.message ?? error}`))
  connection.on('connection_lost', (error) => log(`connection_lost: ${error.message ?? error}`))
  await once(connection, 'connect', 'error', 'close')
  return connection
}

async function close (connection) {
  const closed = once(connection, 'close')
  connection.close()
  await closed
}

/** Publish and wait for the ack. */
function publish (connection, data, channel = 'foo') {
  return new Promise((resolve) => {
    connection.publish(channel, data, (error) => {
      log(`ack ${channel} ${error ? `Error: ${error.message ?? error}` : 'ok'}`)
      resolve()
    })
  })
}

/** Subscribe and wait for the answer; `seen(sequence)` waits until that message has come `times` times. */
async function subscribe (connection, name, options, { group, channel = 'foo', onMessage = () => {} } = {}) {
  const subscription = group === undefined
    ? connection.subscribe(channel, options)
    : connection.subscribe(channel, group, options)
  const seen = new Map()
  subscription.seen = async (sequence, times = 1) => {
    while ((seen.get(sequence) ?? 0) < times) await once(subscription, 'message')
  }
  subscription.on('message', (message) => {
    const sequence = message.getSequence()
    seen.set(sequence, (seen.get(sequence) ?? 0) + 1)
    log(`${name} message ${sequence} ${message.isRedelivered() ? 'redelivered' : 'new'} ${message.getData()}`)
    onMessage(message)
  })
  subscription.on('closed', () => log(`${name} closed`))
  subscription.on('unsubscribed', () => log(`${name} unsubscribed`))
  subscription.on('ready', () => log(`${name} ready`))
  subscription.on('error', (error) => log(`${name} error: ${error.message ?? error}`))
  await once(subscription, 'ready', 'error')
  return subscription
}

async function leave (subscription, how, event) {
  const gone = once(subscription, event)
  subscription[how]()
  await gone
}

const closeSubscription = (subscription) => leave(subscription, 'close', 'closed')
const unsubscribe = (subscription) => leave(subscription, 'unsubscribe', 'unsubscribed')

const acking = (...sequences) => ({
  onMessage: (message) => { if (sequences.includes(message.getSequence())) message.ack() }
})

const scripts = {
  async basic () {
    const connection = await connect()
    const options = () => connection.subscriptionOptions()
    for (const data of ['m1', 'm2', 'm3']) await publish(connection, data)
    const all = await subscribe(connection, 'S1', options().setDeliverAllAvailable())
    await all.seen(3)
    const positions = [
      options().setStartWithLastReceived(),
      options().setStartAtSequence(2),
      options().setStartAtTimeDelta(60000),
      options().setStartTime(new Date(Date.now() - 30000)),
      options()
    ]
    for (const position of positions) {
      const short = await subscribe(connection, 'Sx', position)
      await sleep(100)
      await closeSubscription(short)
    }
    await publish(connection, 'm4')
    await all.seen(4)
    await sleep(100)
    await unsubscribe(all)
    await close(connection)
  },

  async durable () {
    let connection = await connect()
    const options = () => connection.subscriptionOptions()
      .setDeliverAllAvailable().setDurableName('dur').setManualAckMode(true).setMaxInFlight(3).setAckWait(2000)
    for (const data of ['m1', 'm2', 'm3', 'm4', 'm5']) await publish(connection, data)
    const first = await subscribe(connection, 'D1', options(), acking(1, 2))
    await first.seen(5)
    await sleep(300)
    await closeSubscription(first)
    await sleep(150)
    await subscribe(connection, 'D2', options(), acking(3, 5))
    await sleep(2600)
    await close(connection)
    await sleep(50)
    connection = await connect()
    const third = await subscribe(connection, 'D3', options(), acking(4))
    await third.seen(4)
    await sleep(200)
    await unsubscribe(third)
    const fourth = await subscribe(connection, 'D4', options(), acking(1, 2, 3, 4, 5))
    await fourth.seen(5)
    await sleep(200)
    await close(connection)
  },

  async durable_restart () {
    const connection = await connect({ stanPingInterval: 1000, stanMaxPingOut: 10 })
    const options = connection.subscriptionOptions()
      .setDeliverAllAvailable().setDurableName('dur').setManualAckMode(true).setAckWait(1000)
    const acked = new Set()
    const subscription = await subscribe(connection, 'D1', options, {
      onMessage: (message) => {
        // Message 2 is left pending when it comes for the first time.
        if (message.getSequence() !== 2 || message.isRedelivered()) message.ack()
        acked.add(message.getSequence())
      }
    })
    await publish(connection, 'm1')
    await publish(connection, 'm2')
    await subscription.seen(2)
    log('waiting')
    await subscription.seen(2, 2)
    log('after restart')
    await sleep(1500)
    await publish(connection, 'm3')
    await subscription.seen(3)
    await sleep(300)
    await close(connection)
  },

  async connection_lost () {
    const connection = await connect({ stanPingInterval: 1000, stanMaxPingOut: 2 })
    const closed = once(connection, 'close')
    log('waiting')
    await closed
  },

  async errors () {
    const connection = await connect({ ackTimeout: 800 })
    const options = () => connection.subscriptionOptions()
    await connect()
    await publish(connection, 'x', 'foo.*')
    await publish(connection, 'x', 'foo..bar')
    await subscribe(connection, 'D1', options().setDurableName('dur'))
    await subscribe(connection, 'D2', options().setDurableName('dur'))
    await subscribe(connection, 'W', options(), { channel: 'foo.>' })
    await subscribe(connection, 'M0', options().setMaxInFlight(0))
    await unsubscribe(await subscribe(connection, 'U', options()))
    await close(connection)
    await connect({ connectTimeout: 500 }, CLIENT, 'wrong-cluster')
  },

  async queue () {
    const one = await connect({}, 'node-client1')
    const two = await connect({}, 'node-client2')
    const options = (connection) => connection.subscriptionOptions().setManualAckMode(true).setAckWait(1000)
    const ack = { group: 'group', onMessage: (message) => message.ack() }
    const first = await subscribe(one, 'Q1', options(one), ack)
    const second = await subscribe(one, 'Q2', options(one), ack)
    const silent = await subscribe(two, 'Q3', options(two), { group: 'group' })
    for (const data of ['m1', 'm2', 'm3', 'm4', 'm5', 'm6']) await publish(one, data)
    await silent.seen(3)
    await sleep(200)
    await closeSubscription(silent)
    // Which member gets what the one that left was holding is the server's choice.
    await Promise.race([first.seen(3), second.seen(3)])
    await sleep(1200)
    await Promise.all([close(one), close(two)])
  }
}

setTimeout(() => process.exit(3), HANG_MS).unref()
scripts[script]().then(() => {
  log('done')
  process.exit(0)
})
