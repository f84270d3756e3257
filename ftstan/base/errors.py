"""One exception tree for the whole package; every error carries a hint for the person who reads it.

The text says what happened and to what; ``hint`` says what to do next. Nothing below the command
line catches ``Exception`` to print a traceback: an operator sees ``str(error)`` and the hint.
"""

from __future__ import annotations


class FtstanError(Exception):
    """Base of every error that ftstan raises on purpose.

    ``hint`` is one line for the operator, or empty when the text already says what to do.
    ``option`` is the key of the option at fault, as in the option table or in the file of
    ``nats-server``, for whoever knows where it was said. ``is_usage``: what was asked for was
    wrong, whoever was asked.
    """

    is_usage = False

    def __init__(self, text: str, *, hint: str = "", option: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.option = option


class ConfigError(FtstanError):
    """A flag, key or value that cannot be used; nothing has been touched yet."""

    is_usage = True


class UsageError(ConfigError):
    """Words of a command that are wrong or missing, found while it runs."""


class WireError(FtstanError):
    """Bytes that are not the protocol they claim to be."""


class StoreError(FtstanError):
    """A storage operation failed; the publish or request that needed it gets this text."""


class StoreFullError(StoreError):
    """No space is left; publishes are refused until a new slice can be synced."""


class DamageError(StoreError):
    """Stored bytes that cannot be what was acknowledged; ``hint`` names the repair command."""


class QuarantineError(StoreError):
    """The channel's files are damaged: nothing is written to them until somebody has looked."""


class RecoveryError(StoreError):
    """The datastore cannot be served as it is."""


class FencedError(FtstanError):
    """Another node owns the datastore (or may): nothing more may be sent or written."""


class ReleasedError(FencedError):
    """This server has given the datastore back itself, and something was still to be done with
    it.
    """


class StoppedError(FtstanError):
    """What was under way was ended because the server stops; nobody needs to be told."""


class EndedError(StoppedError):
    """This server has ended inside a program that goes on.

    What it was about to do must not be done.
    """


class LockBusyError(FtstanError):
    """Somebody else holds the store lock at this moment."""


class LockFaultError(FtstanError):
    """The lock could not even be asked for (no lock service, permission, stale handle, I/O
    error).
    """


class LockMissingError(LockFaultError):
    """There is no lock file, or no directory for it."""


class NatsError(FtstanError):
    """The NATS server cannot be started, reached or understood."""


class UnansweredError(NatsError):
    """The NATS server was asked for something; whether it does it is not known."""


class ConflictError(FtstanError):
    """Another partition of this cluster id serves one of our channels."""


class RefusedError(FtstanError):
    """A member was asked for something and will not do it; nothing has changed."""
