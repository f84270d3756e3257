"""The answers of servers that the client does something about.

All others are told to its user as they are.

The same words as the server's constants, which this package does not import;
``tests/client/test_sessions.py`` compares. Source: ``docs/compat/protocol.md``, "Error strings".
"""

from __future__ import annotations

from typing import Final

CLIENT_ID_TAKEN: Final = "stan: clientID already registered"
DUPLICATE_DURABLE: Final = "stan: duplicate durable registration"
INVALID_PUBLISH: Final = "stan: invalid publish request"
