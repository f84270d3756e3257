"""Reload (SIGHUP): the configuration is read again, and what can change while a server serves is
changed.

All or nothing: a file with an error, a value that needs a restart, or a NATS server that refuses
its part, changes nothing and is one line. Lives on the control thread; the file is read on another
one, for its storage may hang.

Source: ``docs/compat/config.md`` (signals), ``docs/signals.md``.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from ftstan.base import log
from ftstan.base.errors import (
    ConfigError,
    FtstanError,
    RefusedError,
    StoreError,
    UnansweredError,
)
from ftstan.config.table import OPTIONS, RELOADABLE
from ftstan.nats.credentials import own
from ftstan.nats.direct_road import (
    drop_tls,
    ends_tls,
    link_options,
    make_tls,
    max_line,
    why_not,
)
from ftstan.nats.generated import child_options
from ftstan.nats.material import check_material

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.config.options import LinkOptions, NatsOptions, ServerOptions, StoreLimits
    from ftstan.front.listener import Front
    from ftstan.nats.embedded import NatsServerChild
    from ftstan.node.context import Context

NO_FILE = "can only reload config when a file is provided using -c or --config"
ONLY_EMBEDDED = "Reload supported only for embedded NATS Server's configuration"

#: Names that operators know.
_KEYS = {option.field: option.key for option in OPTIONS if option.field}


def changed(old: object, new: object, path: str = "") -> Iterator[str]:
    """Paths of the options that differ, ``nats.port`` for one of a group."""
    if not is_dataclass(old) or type(old) is not type(new):
        if old != new:
            yield path
        return
    for field in fields(old):
        below = f"{path}.{field.name}" if path else field.name
        yield from changed(getattr(old, field.name), getattr(new, field.name), below)


def key_of(path: str) -> str:
    """The name by which operators know an option."""
    return _KEYS.get(path, path)


class Reloader:
    """One node's. ``read`` gives the options as they are now to be.

    ``None``: there is no file to read.

    ``renew`` has every connection present these logins and certificates from now on.
    """

    def __init__(
        self,
        node: Context,
        read: Callable[[], ServerOptions] | None,
        renew: Callable[[LinkOptions], None],
    ) -> None:
        self._node = node
        self._renew = renew
        self._read = read
        self._busy = asyncio.Lock()

    async def on_signal(self) -> None:
        """Reload, and log what went wrong."""
        try:
            await self.reload()
        except FtstanError as error:
            hint = f" ({error.hint})" if error.hint else ""
            log.stream.error(f"Reload: {error}{hint}")

    async def reload(self) -> None:
        """Take over what has changed. Raises ``FtstanError``: nothing has changed then."""
        async with self._busy:
            if self._read is None:
                raise RefusedError(
                    NO_FILE, hint="what was given on the command line needs a restart"
                )
            node = self._node
            old = node.options
            new = await asyncio.to_thread(self._read)
            paths = list(changed(old, new))
            fixed = [f'"{key_of(path)}"' for path in paths if path not in RELOADABLE]
            if new.partitioning and "limits.channels" in paths:
                # The list of channels is what other partitions have agreed to.
                fixed.append('"channels"')
            if fixed:
                raise ConfigError(
                    f"cannot change {', '.join(fixed)} without a restart",
                    hint="nothing was changed; take that back, or restart the server",
                )
            await asyncio.to_thread(check_material, new)
            # What the pages read, too, before the NATS server changes anything: it cannot be asked
            # to take that back.
            await asyncio.to_thread(node.monitor.check, new.nats.tls)
            if new.nats_servers:
                log.stream.warning(ONLY_EMBEDDED)
            elif node.child is not None:
                await self._reload_child(node.child, node.front, new)
            await self.reload_tls(new)
            limits = await self._limit(new.limits)
            node.options = new
            log.set_levels(
                debug=new.debug,
                trace=new.trace,
                nats_debug=new.nats.debug,
                nats_trace=new.nats.trace,
            )
            if "log.time" in paths:
                log.set_time(shown=new.log.time)
                # The original's, too, is a line of the other half.
                log.nats.info(f"Reloaded: logtime = {str(new.log.time).lower()}")
            for path in ("debug", "trace", "allow_channel_move"):
                if path in paths:
                    log.stream.info(f"Reloaded: {key_of(path)} = {str(getattr(new, path)).lower()}")
            for line in limits:
                log.stream.info(f"Reloaded: {line}")

    async def _reload_child(
        self, child: NatsServerChild, front: Front | None, new: ServerOptions
    ) -> None:
        if front is None:
            await child.reload(child_options(new))
            if why_not(self._node.options) and not why_not(new):
                _tell_of_next_start()
            return
        # Before the NATS server changes anything: it cannot be asked to take that back.
        await asyncio.to_thread(link_options, own(new), new.nats)
        made = await _tls_made(new.nats)
        reason = why_not(new)
        is_asked = False
        # Who is greeted by the NATS server of the one configuration, and heard by the listener of
        # the other, might be let to send its login in clear.
        try:
            # Ordered here: on another thread it could come behind ``resume`` if this is cancelled.
            front.begin_pause()
            if reason:
                # What is published meanwhile is judged by neither configuration. Were it to pass
                # through the NATS server already, there would be no way back if that refuses.
                front.hold(on=True)
            await asyncio.to_thread(front.finish_pause)
            is_asked = True
            await child.reload(child_options(new))
        except BaseException as error:
            drop_tls(made)
            if is_asked and not _is_refusal(error):
                # It may judge by the new one already, or soon.
                _forbid(front, reason)
            raise
        else:
            if reason:
                _forbid(front, reason)
            else:
                self._allow(front)
            front.set_max_line(max_line(new.nats))
            front.use_tls(made)
        finally:
            if reason:
                front.hold(on=False)
            front.resume()
        if new.nats.tls.enabled and not ends_tls(new.nats) and self._node.link is not None:
            # Its next connection is TLS to the NATS server, of which the listener reads nothing.
            self._node.link.through = None

    def _allow(self, front: Front) -> None:
        """Let the direct road be there again."""
        if not front.is_forbidden:
            return
        link = self._node.link
        if link is None or link.through is not None:
            front.allow()
        if front.is_forbidden_for_good or (link is not None and link.through is None):
            # The listener has given up, or does not see what the core and the NATS server say.
            if why_not(self._node.options):
                _tell_of_next_start()
        else:
            log.nats.info("Clients are served directly again: the configuration allows it")

    async def reload_tls(self, options: ServerOptions) -> None:
        """Use logins, keys and certificates of ``options`` from the next connections on.

        Those that stand stay.

        Raises ``NatsError`` and ``ConfigError`` naming the file; nothing has changed then.
        """
        node = self._node
        for line in await asyncio.to_thread(check_material, options):
            log.stream.warning(line)
        # It reads the files once more, and their storage may hang.
        await asyncio.to_thread(node.monitor.renew, options.nats.tls)
        shown = own(options)
        self._renew(link_options(shown, options.nats) if node.front is not None else shown)

    async def _limit(self, limits: StoreLimits) -> list[str]:
        """Set other limits; returns what changed, a line each."""
        try:
            return await self._node.member.set_limits(limits)
        except StoreError:
            return ["limits, as soon as storage answers"]


def _forbid(front: Front, reason: str) -> None:
    """End the direct road if there is a reason."""
    if reason:
        front.forbid()
        log.nats.warning(f"Clients are served by the NATS server alone: {reason}")


def _tell_of_next_start() -> None:
    log.nats.warning(
        "Clients are served by the NATS server alone: the direct road, which the configuration "
        "allows again, comes with the next start"
    )


def _is_refusal(error: BaseException) -> bool:
    """Whether the NATS server goes on with what it had."""
    return isinstance(error, FtstanError) and not isinstance(error, UnansweredError)


async def _tls_made(nats: NatsOptions) -> int:
    """As ``make_tls``, on another thread; nothing that it makes is left if this is cancelled."""
    lock = threading.Lock()
    kept: list[int] = []
    is_wanted = True

    def make() -> None:
        made = make_tls(nats)
        with lock:
            if is_wanted:
                kept.append(made)
                return
        drop_tls(made)

    try:
        await asyncio.to_thread(make)
    except BaseException:
        with lock:
            is_wanted = False
        # It was made, and nobody has heard of it any more.
        for made in kept:
            drop_tls(made)
        raise
    return kept[0]
