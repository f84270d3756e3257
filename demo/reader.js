'use strict'
// Reads the whole log from sequence 1 with a plain subscription of a fresh client, and follows it until told to end.
// One process for each epoch, so that every owner of the store shows all it has.
//
// Own flags: --reader NAME (client id and name in the ledger) --epoch NUMBER

const { run } = require('./subscriber')
const { flags } = require('./common')

const { reader, epoch } = flags()

run({
  name: reader,
  configure: (options) => options.setDeliverAllAvailable().setMaxInFlight(4096),
  record: (ledger, message, id, sha1) => {
    ledger.write('read', { reader, epoch: Number(epoch), sequence: message.getSequence(), id, sha1 })
  }
})
