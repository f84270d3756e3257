"""What holds in every session, whatever is played (``general_invariants`` of
``tests/data/wire/index.json``).

Each function reads what clients sent and received and gives one line for each breach.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.compat.players.lines import HEARTBEAT, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ACK_INBOX = re.compile(r"_INBOX\.[0-9A-Za-z]{22}")
_RESPONSES = {
    "ConnectResponse",
    "SubscriptionResponse",
    "CloseResponse",
    "PingResponse",
    "PubAck",
    "MsgProto",
}

Lines = list[Line]


def _sent(lines: Lines, kind: str) -> Iterator[Line]:
    return (line for line in lines if line.of_client and line.dir == "c2s" and line.type == kind)


def _received(lines: Lines, *kinds: str) -> Iterator[Line]:
    return (line for line in lines if line.delivered and line.type in kinds)


def _subscriptions(lines: Lines) -> dict[str, Line]:
    """Requests by the subject on which their answer comes."""
    return {
        line.reply: line
        for line in _sent(lines, "SubscriptionRequest")
        if line.reply and line.fields is not None
    }


def response_before_messages(lines: Lines) -> Iterator[str]:
    waiting: dict[str, str] = {}
    for line in lines:
        if (
            line.of_client
            and line.type == "SubscriptionRequest"
            and line.dir == "c2s"
            and line.reply
        ):
            waiting[line.reply] = line.value("inbox") or ""
        elif line.delivered and line.type == "SubscriptionResponse":
            waiting.pop(line.subject, None)
        elif line.delivered and line.type == "MsgProto" and line.subject in waiting.values():
            yield line.shown()


def one_puback_per_publish(lines: Lines) -> Iterator[str]:
    published: dict[tuple[str, str], int] = defaultdict(int)
    answered: dict[tuple[str, str], int] = defaultdict(int)
    for line in _sent(lines, "PubMsg"):
        published[line.reply, line.value("guid") or ""] += 1
    for line in _received(lines, "PubAck"):
        answered[line.subject, line.value("guid") or ""] += 1
    # A publish that does not decode may be refused with the guid that was read before the error, or
    # without.
    undecodable = {line.reply for line in _sent(lines, "PubMsg") if line.fields is None}
    for (subject, guid), count in answered.items():
        if count > published[subject, guid] and subject not in undecodable:
            yield f"{count} acks for guid {guid!r} on {subject}"


def count_only_with_flag(lines: Lines) -> Iterator[str]:
    for line in _received(lines, "MsgProto"):
        if line.value("redelivery_count") and not line.value("redelivered"):
            yield line.shown()


def count_with_flag(lines: Lines) -> Iterator[str]:
    for line in _received(lines, "MsgProto"):
        if bool(line.value("redelivered")) != bool(line.value("redelivery_count")):
            yield line.shown()


def new_messages_increase(lines: Lines) -> Iterator[str]:
    last: dict[str, int] = {}
    for line in _received(lines, "MsgProto"):
        if not line.value("redelivered"):
            if line.value("sequence") <= last.get(line.subject, 0):
                yield line.shown()
            last[line.subject] = line.value("sequence")


def ack_inbox_unique(lines: Lines) -> Iterator[str]:
    requests = _subscriptions(lines)
    seen = set()
    for line in _received(lines, "SubscriptionResponse"):
        if line.subject not in requests or line.value("error"):
            continue
        inbox = line.value("ack_inbox") or ""
        if not _ACK_INBOX.fullmatch(inbox) or inbox in seen:
            yield line.shown()
        seen.add(inbox)


def message_constant(lines: Lines) -> Iterator[str]:
    seen: dict[tuple[str, int], tuple[int, str]] = {}
    for line in _received(lines, "MsgProto"):
        content = line.value("timestamp"), line.value("data") or ""
        if seen.setdefault((line.value("subject"), line.value("sequence")), content) != content:
            yield line.shown()


def empty_success(lines: Lines) -> Iterator[str]:
    for line in _received(lines, "CloseResponse", "PingResponse"):
        if not line.value("error") and line.payload and not line.hdr:
            yield line.shown()


def channel_of_request(lines: Lines) -> Iterator[str]:
    channels = {
        line.value("inbox"): line.value("subject") for line in _subscriptions(lines).values()
    }
    for line in _received(lines, "MsgProto"):
        if line.value("subject") != channels.get(line.subject):
            yield line.shown()


def heartbeat_form(lines: Lines) -> Iterator[str]:
    for line in lines:
        if line.delivered and line.kind == HEARTBEAT and (line.payload or not line.reply):
            yield line.shown()


def no_reply_subject(lines: Lines) -> Iterator[str]:
    for line in _received(lines, *_RESPONSES):
        if line.reply:
            yield line.shown()


def timestamps_ordered(lines: Lines) -> Iterator[str]:
    stamps: dict[str, dict[int, int]] = defaultdict(dict)
    for line in _received(lines, "MsgProto"):
        stamps[line.value("subject")][line.value("sequence")] = line.value("timestamp")
    for channel, by_sequence in stamps.items():
        ordered = [by_sequence[sequence] for sequence in sorted(by_sequence)]
        if ordered != sorted(ordered):
            yield f"{channel}: {by_sequence}"


def error_alone(lines: Lines) -> Iterator[str]:
    for line in _received(lines, "ConnectResponse", "SubscriptionResponse"):
        if line.value("error") and set(line.fields or {}) != {"error"}:
            yield line.shown()


INVARIANTS: dict[str, Callable[[Lines], Iterator[str]]] = {
    "response-before-messages": response_before_messages,
    "one-puback-per-publish": one_puback_per_publish,
    "count-only-with-flag": count_only_with_flag,
    "count-with-flag": count_with_flag,
    "new-messages-increase": new_messages_increase,
    "ack-inbox-unique": ack_inbox_unique,
    "message-constant": message_constant,
    "empty-success": empty_success,
    "channel-of-request": channel_of_request,
    "heartbeat-form": heartbeat_form,
    "no-reply-subject": no_reply_subject,
    "timestamps-ordered": timestamps_ordered,
    "error-alone": error_alone,
}
