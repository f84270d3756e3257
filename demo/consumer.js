'use strict'
// A durable subscription with manual acks that follows the log for the whole demo, over every takeover.

const { run } = require('./subscriber')

const DURABLE = 'demo-durable'

run({
  name: 'demo-consumer',
  configure: (options) => options
    .setDeliverAllAvailable()
    .setDurableName(DURABLE)
    .setManualAckMode(true)
    .setAckWait(2000)
    .setMaxInFlight(1024),
  record: (ledger, message, id, sha1) => {
    const sequence = message.getSequence()
    ledger.write('deliver', { subscription: DURABLE, sequence, id, sha1, redelivered: message.isRedelivered() })
    message.ack()
  }
})
