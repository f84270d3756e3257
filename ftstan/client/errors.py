"""What can go wrong for a client: one tree below ``ClientError``.

The text says what happened, ``hint`` what to do.

An error that came from the server carries the server's own words (``docs/compat/protocol.md``,
"Error strings"). No exception of NATS, of TLS or of the operating system reaches the user of this
package as it is; where one was the cause it is the ``__cause__``.
"""

from __future__ import annotations

from typing import Final

from ftstan.base.errors import FtstanError

__all__ = [
    "ClientError",
    "ClientIdTakenError",
    "ConnectError",
    "ConnectRefusedError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConnectionLostError",
    "DrainTimeoutError",
    "HandlerError",
    "InvalidArgumentError",
    "LoginError",
    "NatsUnreachableError",
    "NotAllowedError",
    "PublishError",
    "PublishRefusedError",
    "PublishTimeoutError",
    "PublishUnknownError",
    "ReplacedError",
    "RequestError",
    "RequestRefusedError",
    "RequestTimeoutError",
    "SubscriptionClosedError",
    "SubscriptionLostError",
]

# Answers of servers that the client does something about; it tells its user all others as they are.
# The server's own words (``docs/compat/protocol.md``, "Error strings"), which this package does not
# import; ``tests/client/test_sessions.py`` compares them.
CLIENT_ID_TAKEN: Final = "stan: clientID already registered"
DUPLICATE_DURABLE: Final = "stan: duplicate durable registration"
INVALID_PUBLISH: Final = "stan: invalid publish request"

_TWICE = "if two processes use this client id, give each its own"


class ClientError(FtstanError):
    """Base of every error of the client."""


class InvalidArgumentError(ClientError):
    """An argument that no server would accept; nothing was sent."""

    is_usage = True


class ConnectError(ClientError):
    """A session could not be made."""


class NatsUnreachableError(ConnectError):
    """None of the NATS servers could be reached in time."""


class LoginError(NatsUnreachableError):
    """NATS refuses the login."""


class ConnectTimeoutError(ConnectError):
    """NATS is there, and no streaming server answers for the cluster id."""


class ConnectRefusedError(ConnectError):
    """The streaming server refuses the session, in its own words."""


class ClientIdTakenError(ConnectRefusedError):
    """Another process with this client id is alive."""

    def __init__(self, text: str) -> None:
        super().__init__(text, hint=_TWICE)


class RequestError(ClientError):
    """A subscribe, unsubscribe or close did not succeed."""


class NotAllowedError(ConnectError, RequestError):
    """The permissions of this login in NATS do not cover what was asked."""


class RequestTimeoutError(RequestError):
    """Nobody answered a request in time; it may have been carried out all the same."""


class RequestRefusedError(RequestError):
    """The server refused a request, in its own words."""


class PublishError(ClientError):
    """A message was not acknowledged.

    ``guid`` names the publish, ``channel`` where it should have gone.
    """

    def __init__(self, text: str, *, channel: str, guid: str, hint: str = "") -> None:
        super().__init__(text, hint=hint)
        self.channel = channel
        self.guid = guid


class PublishRefusedError(PublishError):
    """The server answered a publish with an error, in its own words.

    Of an error of the server's storage it is not known whether the message was stored
    (``docs/store.md``).
    """


class PublishUnknownError(PublishError):
    """The publish was sent, and its answer will not be seen: the message may have been stored, or
    not.
    """


class PublishTimeoutError(PublishUnknownError):
    """No acknowledgement came within ``ack_timeout``."""


class ConnectionLostError(ClientError):
    """The session has ended on the server's side, or nobody has answered its pings for too long."""


class ReplacedError(ConnectionLostError):
    """The server does not know this session any more."""

    def __init__(self, text: str) -> None:
        super().__init__(
            text,
            hint=f"{_TWICE}; else the server gave this client up, or was started anew without a "
            "datastore",
        )


class ConnectionClosedError(ClientError):
    """The connection was closed, by its user or because its session was lost for good."""


class SubscriptionClosedError(ClientError):
    """The subscription has ended: nothing more comes, and nothing can be acknowledged."""


class SubscriptionLostError(SubscriptionClosedError):
    """The session was made again, and the server refused this subscription."""


class HandlerError(ClientError):
    """A callback raised; the exception is the ``__cause__``.

    The message was not acknowledged and comes again.
    """


class DrainTimeoutError(ClientError):
    """Not everything was handled and acknowledged when the time for draining was over."""
