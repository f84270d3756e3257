"""The playbooks of the collection, run on the lab's machines by this host's Ansible."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.errors import LabError
from lab.stages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from lab.lab import Lab

_COLLECTIONS = (ROOT / "ansible", ROOT / "build" / "ansible")


@dataclass(slots=True)
class Recap:
    """What a playbook did: counts by host, and the tasks that changed or failed something, as
    "host: task".
    """

    stats: dict[str, dict[str, int]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def count(self, kind: str) -> int:
        """The sum over all hosts: ``ok``, ``changed``, ``failures``, ``unreachable``."""
        return sum(counts[kind] for counts in self.stats.values())


def play(lab: Lab, name: str, *words: str) -> Recap:
    """Run a playbook to its end, and tell its tasks meanwhile.

    Raises ``LabError`` that names what failed.
    """
    if not (_COLLECTIONS[1] / ".ready").exists():
        raise LabError(
            "collections of others are missing", hint="python tools/ansible_collections.py"
        )
    log = lab.evidence("playbooks") / f"{name}{'-check' if '--check' in words else ''}.jsonl"
    with (
        process(
            command(lab, name, *words), cwd=lab.state, environment=environment(lab.state)
        ) as playing,
        log.open("w") as kept,
    ):
        assert playing.stdout is not None
        recap = follow(_kept(playing.stdout, kept.write), lambda task: lab.say(f"  {name}: {task}"))
        status = playing.wait()
    if status or not recap.stats:
        last = "; ".join(recap.failed) or log.read_text(encoding="utf-8").strip()[-300:]
        raise LabError(
            f"ansible-playbook {name} ended with status {status}: {last}", hint=f"see {log}"
        )
    return recap


def command(lab: Lab, name: str, *words: str) -> list[str]:
    """The command line that runs a playbook, in the directory of the state, with
    ``environment``.
    """
    directory = os.path.dirname(sys.executable)
    return [
        f"{directory}/ansible-playbook",
        "-i",
        str(lab.inventory),
        f"ftstan.ftstan.{name}",
        *words,
    ]


def _kept(lines: Iterable[str], keep: Callable[[str], object]) -> Iterator[str]:
    for line in lines:
        keep(line)
        yield line


def follow(lines: Iterable[str], tell: Callable[[str], object]) -> Recap:
    """Read the events of ``ansible.posix.jsonl``; every task is told when it starts."""
    recap = Recap()
    for line in lines:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                _take(event, recap, tell)
    return recap


def _take(event: dict[str, Any], recap: Recap, tell: Callable[[str], object]) -> None:
    kind = event.get("_event", "")
    if kind in {"v2_playbook_on_task_start", "v2_playbook_on_handler_task_start"}:
        tell(event["task"]["name"])
    elif kind == "v2_playbook_on_stats":
        recap.stats = event["stats"]
    elif kind in {"v2_runner_on_ok", "v2_runner_on_failed", "v2_runner_on_unreachable"}:
        for host, result in event["hosts"].items():
            if kind != "v2_runner_on_ok":
                recap.failed.append(f"{host}: {event['task']['name']}: {_words(result)}")
            elif result.get("changed"):
                recap.changed.append(f"{host}: {event['task']['name']}")


def _words(result: dict[str, Any]) -> str:
    said = [str(result[key]).strip() for key in ("msg", "stderr", "stdout") if result.get(key)]
    return " / ".join(said)[:600]


@contextlib.contextmanager
def process(
    words: list[str], *, cwd: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A child whose output, both streams, is read; it does not outlive the block."""
    with subprocess.Popen(
        words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True, errors="replace",
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            if child.poll() is None:
                child.terminate()


def environment(state: Path) -> dict[str, str]:
    """That of Ansible's commands: our collections, connections that are kept, an answer for
    programs.
    """
    return {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": ":".join(map(str, _COLLECTIONS)),
        "ANSIBLE_HOME": str(state / "ansible"),
        "ANSIBLE_GATHERING": "smart",
        "ANSIBLE_HOST_KEY_CHECKING": "False",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "True",
        # Compression, which is the default, costs a guest more than it saves.
        "ANSIBLE_SSH_ARGS": "-o Compression=no",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.jsonl",
        "ANSIBLE_TIMEOUT": "60",
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
    }
