"""ftstan: a NATS Streaming (STAN) server centred on the fault-tolerant group.

Several nodes share one datastore and exactly one of them serves. See ``docs/architecture.md`` for the rooms of this
package and the rule that each imports only from rooms below it.
"""

__version__ = "0.1.0"

#: The release whose behaviour clients, operators and monitoring see (banner, ``-v``, ``serverz``).
COMPATIBLE_VERSION = "0.25.6"
