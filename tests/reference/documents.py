"""The code blocks of a README of the original, and which test stands for which of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

_HEAD = re.compile(r"^== (\d+) (.*)\n", re.MULTILINE)


class Document:
    """One README. ``document[n]``: the text of its block ``n``.

    ``example`` marks the test of a block.
    """

    def __init__(self, release: str) -> None:
        text = (ROOT / "tests" / "data" / "reference" / f"{release}.txt").read_text(
            encoding="utf-8"
        )
        _, *parts = _HEAD.split(text)
        self._blocks = {
            int(n): body.strip("\n") for n, body in zip(parts[::3], parts[2::3], strict=True)
        }
        self._tested: set[int] = set()

    def __getitem__(self, number: int) -> str:
        return self._blocks[number]

    @property
    def numbers(self) -> list[int]:
        return list(self._blocks)

    def lines(self, number: int) -> list[str]:
        return self[number].splitlines()

    def json(self, number: int) -> dict[str, Any]:
        page: dict[str, Any] = json.loads(self[number])
        return page

    def example(self, *numbers: int) -> Callable[[T], T]:
        """Say that a test shows these blocks; a block that does not exist is an error."""
        unknown = [number for number in numbers if number not in self._blocks]
        if unknown:
            raise ValueError(f"no such blocks: {unknown}")
        self._tested.update(numbers)

        def same(test: T) -> T:
            return test

        return same

    def without_a_test(self) -> list[int]:
        return [number for number in self._blocks if number not in self._tested]


#: What differs from run to run, and from one release to the next, in pages and lines.
VARIES = {
    "server_id",
    "version",
    "go",
    "now",
    "start_time",
    "uptime",
    "hb_inbox",
    "inbox",
    "ack_inbox",
} | {
    *("total_msgs", "total_bytes", "msgs", "bytes", "first_seq", "last_seq", "last_sent", "total"),
}
COUNTED = ("clients", "subscriptions", "channels")


def differences(documented: Any, found: Any, path: str = "") -> list[str]:
    """Where a page is not what the document shows.

    Every documented key is there, in the documented order, with a value of the same type, and with
    the same value unless it ``VARIES``; later releases may have more keys. Each documented
    subscription is one of those found.
    """
    if type(documented) is not type(found):
        return [f"{path}: {found!r} instead of {documented!r}"]
    if isinstance(documented, dict):
        there = [key for key in found if key in documented]
        if there != list(documented):
            return [f"{path}: keys {there} instead of {list(documented)}"]
        return [
            line
            for key, value in documented.items()
            for line in differences(value, found[key], f"{path}/{key}")
        ]
    if isinstance(documented, list):
        if any(isinstance(value, dict) and "ack_inbox" in value for value in documented):
            return [
                f"{path}: no subscription like {one}" for one in documented if not _has(found, one)
            ]
        if len(found) != len(documented):
            return [f"{path}: {len(found)} entries instead of {len(documented)}"]
        return [
            line
            for pair in zip(documented, found, strict=True)
            for line in differences(*pair, f"{path}/[]")
        ]
    key = path.rpartition("/")[2]
    if key in VARIES or key in COUNTED or documented == found:
        return []
    return [f"{path}: {found!r} instead of {documented!r}"]


def _has(found: list[Any], documented: Any) -> bool:
    return any(not differences(documented, one) for one in found)


def missing_lines(documented: Iterable[str], found: Sequence[str]) -> list[str]:
    """The documented log lines that do not come in their order; ids and versions may be others."""
    rest = iter(found)
    missing = []
    for line in documented:
        pattern = re.escape(line)
        pattern = re.sub(r"(version\\ )\S+", r"\1\\S+", pattern)
        pattern = re.sub(r"(ServerID:\\ )\w+", r"\1\\w{22}", pattern)
        pattern = re.sub(r"(Go\\ version:\\ )\S+", r"\1\\S+", pattern)
        pattern = re.sub(
            r"(0\\\.0\\\.0\\\.0|localhost|127\\\.0\\\.0\\\.1):\d{4}",
            r"127\\.0\\.0\\.1:\\d+",
            pattern,
        )
        if not any(re.fullmatch(pattern, other) for other in rest):
            missing.append(line)
            rest = iter(found)
    return missing


V05 = Document("v0.5")
V10 = Document("v0.10")
