"""``ftstanctl bridge``: mirror channels into JetStream, and see how far that is
(``docs/jetstream.md``).

Exit status: 0 done, 1 a channel was stopped, is not level or differs, 3 not carried out.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import ftstan.client
from ftstan.admin.protocol import Request, Verb
from ftstan.base.clock import SystemClock
from ftstan.base.errors import ConfigError, NatsError, RefusedError
from ftstan.bridge import compare, names, positions
from ftstan.bridge.backlog import LogFiles
from ftstan.bridge.bridge import Bridge
from ftstan.bridge.cutover import Move
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.feed import Feed
from ftstan.bridge.mirror import Mirror
from ftstan.bridge.target import StreamOptions, Target
from ftstan.bridge.wayback import Inlet, WayBack
from ftstan.cli import client_options, connecting
from ftstan.cli.admin_client import UnservedError, claimed, read_admin_key
from ftstan.cli.admin_servers import Servers
from ftstan.cli.confirming import confirm
from ftstan.cli.hidden import blank_secrets
from ftstan.cli.terminal import print_json, print_table, say
from ftstan.cli.words.bridge import EXIT_DONE, EXIT_STOPPED
from ftstan.client import ClientIdTakenError
from ftstan.client.options import check_channel
from ftstan.config.options import LinkOptions
from ftstan.nats.jetstream import JetStream
from ftstan.nats.link import Link
from ftstan.nats.request import asking

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from ftstan.bridge.feed import Connecting, Telling
    from ftstan.client import Connection

_PING_MAX_OUT: Final = 60
#: Behind the client id: who may publish to a channel that has moved.
_MOVER: Final = "-mover"
#: Seconds for the acknowledgement of a message; without it the session begins anew.
_ACK_S: Final = 5.0
#: Seconds for who serves.
_ASK_S: Final = 1.0
#: Columns with words.
_TEXTS: Final = ("channel", "stream", "channel_crc", "stream_crc")


def run(arguments: argparse.Namespace) -> int:
    """Carry out one verb; returns the exit status. Raises ``FtstanError``."""
    if named := getattr(arguments, "name", None):
        arguments.channel = [*(arguments.channel or ()), *named]
    elif arguments.verb in ("cutover", "undo") and not arguments.channel:
        raise ConfigError(
            f"ftstanctl bridge {arguments.verb} takes a channel",
            hint=f"ftstanctl bridge {arguments.verb} CHANNEL",
        )
    for channel in arguments.channel or ():
        check_channel(channel)
    return _VERBS[arguments.verb](arguments)


# ---- run


def _run(arguments: argparse.Namespace) -> int:
    blank_secrets()
    if arguments.back and arguments.once:
        raise ConfigError(
            "--once ends when every channel is level, and --back goes on",
            hint="leave one of the two out",
        )
    told = _say_json if arguments.output == "json" else say
    mirrors = _mirrors(arguments)
    with contextlib.ExitStack() as stack:
        files = _files(arguments, stack)
        target = _target(arguments)
        stack.callback(target.js.close)
        inlets = [Inlet(m.channel, m.stream) for m in mirrors] if arguments.back else []
        bridge = Bridge(
            *(target, _connecting(arguments, ""), files, mirrors),
            clock=SystemClock(),
            say=told,
            purge_at_gap=arguments.purge_at_gap,
            once=arguments.once,
            metrics_file=arguments.metrics_file,
            inlets=inlets,
        )
        stack.callback(bridge.close)
        _connect(target)
        bridge.open()
        bridge.prepare()
        if arguments.dry_run:
            return _say_plan(arguments, mirrors)
        if inlets:
            live = [inlet for inlet, mirror in zip(inlets, mirrors, strict=True) if mirror.is_live]
            _start_way_back(arguments, live, told, stack)
        with _until_signalled(bridge):
            bridge.run()
    errors = [one.error for one in mirrors] + [one.error for one in inlets]
    return EXIT_DONE if errors == [None] * len(errors) else EXIT_STOPPED


def _start_way_back(
    arguments: argparse.Namespace,
    inlets: list[Inlet],
    told: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> None:
    target = _target(arguments)
    stack.callback(target.js.close)
    feed = Feed(_connecting(arguments, "-back", _ACK_S), lambda: None, told)
    stack.callback(feed.close)
    feed.open()
    back = WayBack(target, feed, inlets, lambda channel: _look(arguments, channel), told)
    stack.callback(back.stop)
    back.start()


def _say_json(line: str) -> None:
    print_json({"line": line})
    sys.stdout.flush()


def _mirrors(arguments: argparse.Namespace) -> list[Mirror]:
    return [
        Mirror(i, *pair, two_way=arguments.back)
        for i, pair in enumerate(_streams(arguments).items())
    ]


def _streams(arguments: argparse.Namespace) -> dict[str, str]:
    channels = dict.fromkeys(arguments.channel)
    return names.stream_names(channels, arguments.stream_prefix, dict(arguments.stream))


def _files(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> LogFiles | None:
    if not arguments.datastore:
        return None
    files = stack.enter_context(LogFiles(arguments.datastore, arguments.crc_poly))
    if files.cluster_id != arguments.cluster:
        raise ConfigError(
            f'{arguments.datastore} is of the cluster "{files.cluster_id}", not '
            f'"{arguments.cluster}"',
            hint="correct --dir or --cluster",
        )
    return files


@contextlib.contextmanager
def _until_signalled(bridge: Bridge) -> Iterator[None]:
    """SIGTERM and SIGINT end the bridge once what it sent is answered."""
    former = {
        number: signal.signal(number, lambda *_: bridge.stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _say_plan(arguments: argparse.Namespace, mirrors: list[Mirror]) -> int:
    rows: list[dict[str, Any]] = [
        {
            "channel": m.channel,
            "stream": m.stream,
            "stream_is": "there" if m.exists else "new",
            "mirrored_to": m.acked if m.exists else 0,
            "first": m.extent.first if m.extent is not None else None,
            "last": m.extent.last if m.extent is not None else None,
            "backlog": "files" if m.extent is not None else "server",
        }
        for m in mirrors
    ]
    if arguments.output == "json":
        print_json({"dry_run": True, "channels": rows, "differences": list(DIFFERENCES)})
        return EXIT_DONE
    _print_rows(rows, ("channel", "stream", "stream_is", "backlog"))
    say("", "What is different in JetStream:", *(f"- {line}" for line in DIFFERENCES), "")
    say("nothing was written")
    return EXIT_DONE


#: What whoever moves should know before; the whole table is in docs/jetstream.md.
DIFFERENCES: Final = (
    "a stream's limits are those of --max-msgs, --max-bytes and --max-age, not the channel's",
    "a message's time in the stream is that of its copy; its own is in the header Ftstan-Timestamp",
    "the reply of a publish is in the header Ftstan-Reply",
    "durables and durable queue groups become consumers by ftstanctl bridge consumers",
    "a consumer gives again what was acknowledged behind a pending message, and counts anew",
    "with --back, headers of new publishers' messages are dropped until the cut-over",
)


# ---- status and verify


@contextlib.contextmanager
def _asking(arguments: argparse.Namespace) -> Iterator[tuple[Target, Feed]]:
    """Connections to both sides, for a look."""
    target = _target(arguments)
    feed = Feed(_connecting(arguments, f"-{arguments.verb}"), lambda: None, _complain)
    try:
        _connect(target)
        target.check()
        feed.open()
        yield target, feed
    finally:
        feed.close()
        target.js.close()


def _complain(text: str) -> None:
    say(text, file=sys.stderr)


def _status(arguments: argparse.Namespace) -> int:
    streams = _streams(arguments) if arguments.channel else {}
    with _asking(arguments) as (target, feed):
        found = compare.lags(target, feed, streams)
    rows = [
        {
            "channel": one.channel,
            "stream": one.stream,
            "channel_last": one.channel_last,
            "stream_last": one.stream_last,
            "messages": one.messages,
            "lag": one.lag,
            "waiting": one.waiting,
            "state": "foreign" if one.is_foreign else one.state,
        }
        for one in found
    ]
    if arguments.output == "json":
        print_json({"channels": rows})
    elif rows:
        _print_rows(rows, ("channel", "stream", "state"))
    else:
        say(f'JetStream has no streams of channels of "{arguments.cluster}"')
    return EXIT_STOPPED if any(one.lag or one.is_foreign for one in found) else EXIT_DONE


def _verify(arguments: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        streams = _streams(arguments)
        files = _files(arguments, stack)
        target, feed = stack.enter_context(_asking(arguments))
        found = [
            compare.compare(
                *(target, feed, files, channel, stream), look=lambda name: _look(arguments, name)
            )
            for channel, stream in streams.items()
        ]
    rows = [_comparison_row(one) for one in found]
    if arguments.output == "json":
        print_json({"channels": rows})
    else:
        _print_rows([{**row, "differs_at": row["differs_at"] or "-"} for row in rows], _TEXTS)
    return EXIT_DONE if all(one.is_equal for one in found) else EXIT_STOPPED


def _comparison_row(one: compare.Comparison) -> dict[str, Any]:
    return {
        "channel": one.channel,
        "stream": one.stream,
        "channel_messages": one.log.messages,
        "stream_messages": one.copy.messages,
        "channel_crc": f"{one.log.crc:08x}",
        "stream_crc": f"{one.copy.crc:08x}",
        "last": one.log.last,
        "older_in_stream": one.older,
        "differs_at": one.differs_at,
    }


# ---- consumers


def _consumers(arguments: argparse.Namespace) -> int:
    if not arguments.datastore:
        raise ConfigError(
            "positions of durables are read from the files of a datastore",
            hint="give its directory: --dir DIR",
        )
    streams = _streams(arguments)
    rows = []
    with contextlib.ExitStack() as stack:
        files = _files(arguments, stack)
        assert files is not None
        found = {channel: positions.positions(files.subscriptions(channel)) for channel in streams}
        target = _target(arguments)
        stack.callback(target.js.close)
        _connect(target)
        target.check()
        for channel, stream in streams.items():
            state = target.look(stream)
            if state is None or (state.channel, state.cluster) != (channel, arguments.cluster):
                raise BridgeError(
                    f'there is no stream "{stream}" that mirrors the channel "{channel}"',
                    hint="make it first: ftstanctl bridge run",
                )
        for channel, stream in streams.items():
            for one in found[channel]:
                is_new = not arguments.dry_run and positions.make(target, stream, one)
                done = "made" if is_new else "not made" if arguments.dry_run else "there"
                rows.append({"channel": channel, "stream": stream, **asdict(one), "state": done})
    if arguments.output == "json":
        print_json({"dry_run": arguments.dry_run, "consumers": rows})
        return EXIT_DONE
    if not rows:
        say("the channel has no durables and no durable queue groups", file=sys.stderr)
        return EXIT_DONE
    texts = ("channel", "stream", "consumer", "client_id", "durable", "queue", "state")
    _print_rows(rows, texts)
    if any(row["again"] for row in rows):
        say("", "AGAIN: messages that were acknowledged behind one that was not; they come again")
    return EXIT_DONE


# ---- cut-over and undo


def _look(arguments: argparse.Namespace, channel: str) -> tuple[int, int]:
    """Messages and last sequence of a channel, as the server says. Raises ``NatsError``."""
    arguments.secure = False
    options = connecting.link_options(arguments)
    try:
        with asking(arguments.server, options, seconds=arguments.connect_timeout) as asker:
            return _looked(Servers(asker, arguments.cluster, _ASK_S), channel)
    except (RefusedError, UnservedError) as error:
        raise NatsError(error.text, hint=error.hint) from error


def _looked(servers: Servers, channel: str) -> tuple[int, int]:
    row = servers.one(Request(Verb.CHANNEL, name=channel))[1]
    return int(row["msgs"]), int(row["last_seq"])


class _Marks:
    """Marks channels through the requests of administrators."""

    def __init__(self, arguments: argparse.Namespace, servers: Servers) -> None:
        self._arguments = arguments
        self._servers = servers

    def is_moved(self, channel: str) -> bool:
        """Whether the server says so."""
        return bool(self._servers.one(Request(Verb.CHANNEL, name=channel))[1].get("moved"))

    def look(self, channel: str) -> tuple[int, int]:
        """Its messages and last sequence."""
        return _looked(self._servers, channel)

    def mark(self, channel: str, *, on: bool) -> int:
        """Mark it, or take that back."""
        server, _ = self._servers.one(Request(Verb.CHANNEL, name=channel))
        mover = self._arguments.client_id + _MOVER
        request = Request(Verb.MOVED, name=channel, on=on, client=mover, by=claimed())
        answer = self._servers.change(self._arguments, server, request)
        return int(answer.rows[0]["last_seq"])


@contextlib.contextmanager
def _moving(
    arguments: argparse.Namespace,
) -> Iterator[tuple[Target, Callable[[str, str], Move]]]:
    """JetStream, and what moves a channel into a stream."""
    arguments.dir = arguments.datastore
    arguments.secure = False
    # Before anything is changed: the key must be there.
    read_admin_key(arguments)
    target = _target(arguments)
    _connect(target)
    try:
        target.check()
        with asking(
            arguments.server, connecting.link_options(arguments), seconds=arguments.connect_timeout
        ) as asker:
            marks = _Marks(arguments, Servers(asker, arguments.cluster, _ASK_S))
            yield (
                target,
                lambda channel, stream: Move(
                    *(target, marks, channel, stream, arguments.wait, _complain)
                ),
            )
    finally:
        target.js.close()


def _cutover(arguments: argparse.Namespace) -> int:
    streams = _streams(arguments)
    shown = ", ".join(streams)
    confirm(arguments, f"refuse publishes to {shown} at the streaming server from now on")
    is_fine = True
    rows = []
    with contextlib.ExitStack() as stack:
        files = _files(arguments, stack)
        target, moved = stack.enter_context(_moving(arguments))
        feed = Feed(_connecting(arguments, "-verify"), lambda: None, _complain)
        stack.callback(feed.close)
        feed.open()
        for channel, stream in streams.items():
            move = moved(channel, stream)
            last = move.cut_over()
            found = compare.compare(*(target, feed, files, channel, stream), look=move.mover.look)
            late = move.late_messages()
            is_fine &= found.is_equal and not late
            rows.append({**_comparison_row(found), "moved_at": last, "late": late})
            if late:
                _complain(
                    f"{channel}: {late} messages came into {stream}_new while it was closed: "
                    f"ftstanctl bridge undo {channel}, then run the bridge with --back"
                )
        consumers = _consumer_rows(streams, files) if files is not None else []
    if arguments.output == "json":
        print_json({"channels": rows, "consumers": consumers})
    else:
        _print_rows([{**row, "differs_at": row["differs_at"] or "-"} for row in rows], _TEXTS)
        _say_consumers(consumers, has_files=bool(arguments.datastore))
    return EXIT_DONE if is_fine else EXIT_STOPPED


def _consumer_rows(streams: dict[str, str], files: LogFiles) -> list[dict[str, Any]]:
    return [
        {"channel": channel, "stream": stream, "config": one.config()}
        for channel, stream in streams.items()
        for one in positions.positions(files.subscriptions(channel))
    ]


def _say_consumers(consumers: list[dict[str, Any]], *, has_files: bool) -> None:
    if not has_files:
        say("", "positions of durables are in the files: ftstanctl bridge consumers --dir DIR")
        return
    say("", f"consumers: {len(consumers)}; to make them: ftstanctl bridge consumers")
    for one in consumers:
        say(f"{one['stream']}: {json.dumps(one['config'])}")


def _undo(arguments: argparse.Namespace) -> int:
    streams = _streams(arguments)
    shown = ", ".join(streams)
    confirm(arguments, f"let the streaming server take publishes to {shown} again")
    rows = []
    with contextlib.ExitStack() as stack:
        _, moved = stack.enter_context(_moving(arguments))
        feed = Feed(_connecting(arguments, _MOVER, _ACK_S), lambda: None, _complain)
        stack.callback(feed.close)
        feed.open()
        for channel, stream in streams.items():
            last = moved(channel, stream).undo(feed)
            rows.append({"channel": channel, "stream": stream, "last": last})
    if arguments.output == "json":
        print_json({"channels": rows})
    else:
        _print_rows(rows, ("channel", "stream"))
        say("", "go on with: ftstanctl bridge run --back")
    return EXIT_DONE


_VERBS: Final = {
    "run": _run,
    "status": _status,
    "verify": _verify,
    "consumers": _consumers,
    "cutover": _cutover,
    "undo": _undo,
}


def _print_rows(rows: list[dict[str, Any]], texts: tuple[str, ...]) -> None:
    heads = {key: key.replace("_", " ") for key in rows[0]}
    print_table(
        tuple(heads.values()),
        [["-" if value is None else value for value in row.values()] for row in rows],
        right=[head for key, head in heads.items() if key not in texts],
    )


# ---- connections


def _connecting(
    arguments: argparse.Namespace, suffix: str, ack_timeout: float = 30.0
) -> Connecting:
    async def connect(on_error: Telling, on_lost: Telling) -> Connection:
        try:
            return await ftstan.client.connect(
                arguments.cluster,
                arguments.client_id + suffix,
                servers=[server.strip() for server in arguments.server.split(",")],
                login=client_options.login(arguments),
                timeout=arguments.connect_timeout,
                ping_max_out=_PING_MAX_OUT,
                ack_timeout=ack_timeout,
                on_error=on_error,
                on_connection_lost=on_lost,
            )
        except ClientIdTakenError as error:
            raise BridgeError(
                f'the client id "{arguments.client_id + suffix}" is taken: another bridge runs',
                hint="leave one of the two running, or give this one another --client-id and "
                "other channels",
            ) from error

    return connect


def _target(arguments: argparse.Namespace) -> Target:
    urls = arguments.jetstream or arguments.server
    clock = SystemClock()
    link = Link(
        [url.strip() for url in urls.split(",")],
        name="ftstan-bridge",
        clock=clock,
        options=_login(arguments),
    )
    options = (
        StreamOptions(
            arguments.replicas,
            arguments.storage,
            arguments.max_msgs,
            arguments.max_bytes,
            arguments.max_age,
        )
        if arguments.verb == "run"
        else StreamOptions()
    )
    return Target(JetStream(link, clock), arguments.cluster, options)


def _login(arguments: argparse.Namespace) -> LinkOptions:
    """The login at JetStream: that of the streaming server where no other NATS is named."""
    given = LinkOptions(
        user=arguments.jetstream_user,
        password=arguments.jetstream_pass,
        token=arguments.jetstream_auth,
        nkey_seed_file=arguments.jetstream_nkey,
        credentials=arguments.jetstream_creds,
        client_ca=arguments.jetstream_tlsca,
        client_cert=arguments.jetstream_tlscert,
        client_key=arguments.jetstream_tlskey,
        server_name=arguments.jetstream_tlsname,
    )
    if given != LinkOptions():
        return given
    if arguments.jetstream:
        return given
    arguments.secure = False
    return connecting.link_options(arguments)


def _connect(target: Target) -> None:
    try:
        target.js.connect(5.0)
    except NatsError as error:
        raise type(error)(
            f"JetStream: {error.text}", hint="correct --jetstream and the login there"
        ) from error
