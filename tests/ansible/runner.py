"""Ansible's commands with our collection, and what a playbook did, by host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT

HOME = ROOT / "ansible"
COLLECTION = HOME / "ansible_collections" / "ftstan" / "ftstan"
BIN = Path(sys.executable).parent
_OTHERS = ROOT / "build" / "ansible"


def ansible(
    command: str, *words: str, cwd: Path = COLLECTION, within: float = 200, **more: str
) -> subprocess.CompletedProcess[str]:
    """One of Ansible's commands, which must be there.

    ``within``: seconds; ``more``: variables of its environment.
    """
    if not (_OTHERS / ".ready").exists():
        pytest.fail(
            f"collections of others are missing: run {BIN.name}/python "
            "tools/ansible_collections.py",
            pytrace=False,
        )
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": f"{HOME}:{_OTHERS}",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_HOME": str(ROOT / "build" / "ansible-home"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        **more,
    }
    return subprocess.run(
        [str(BIN / command), *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Played:
    """A run of a playbook.

    ``changed``, ``failed``: of each host the tasks that did, by name and in order.

    ``text``: what tasks that failed said, and Ansible's own lines.
    """

    status: int
    changed: dict[str, list[str]]
    failed: dict[str, list[str]]
    text: str

    @property
    def said(self) -> str:
        """All that was said, on one line."""
        return " ".join(self.text.split())


def play(playbook: str, inventory: Path, *words: str, **variables: object) -> Played:
    """Run one of the collection's playbooks, or a file, with ``variables`` beside those of the
    inventory.
    """
    name = playbook if playbook.endswith(".yml") else f"ftstan.ftstan.{playbook}"
    done = ansible(
        "ansible-playbook", "-i", str(inventory), name, "-e", json.dumps(variables), *words,
        cwd=inventory.parent,
        within=900,
        ANSIBLE_STDOUT_CALLBACK="ansible.posix.json",
        ANSIBLE_PIPELINING="1",
        ANSIBLE_PYTHON_INTERPRETER="/usr/bin/python3",
    )  # fmt: skip
    start = done.stdout.find("{\n")
    assert start >= 0, done.stdout + done.stderr
    report: Any = json.loads(done.stdout[start:])
    changed: dict[str, list[str]] = {host: [] for host in report["stats"]}
    failed: dict[str, list[str]] = {host: [] for host in report["stats"]}
    lines = [done.stderr]
    for task in (task for one in report["plays"] for task in one["tasks"]):
        for host, result in task["hosts"].items():
            for key, named in (("changed", changed), ("failed", failed)):
                if result.get(key):
                    named[host].append(task["task"]["name"])
            if result.get("failed"):
                keys = ("msg", "stdout", "stderr", "module_stderr", "argument_errors", "results")
                lines += [
                    f"{host}: {task['task']['name']}",
                    *(str(result[key]) for key in keys if key in result),
                ]
    return Played(done.returncode, changed, failed, "\n".join(lines))
