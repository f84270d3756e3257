"""The pair as a load balancer sees it: by the pages of both nodes, from this host."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from ftstan.drill.node_watch import get
from lab.machines import until

if TYPE_CHECKING:
    from lab.lab import Lab
    from lab.machines import Machine


def answers(machine: Machine, page: str) -> bool:
    """Whether a node's health page says yes now."""
    status, _ = asyncio.run(get(f"http://127.0.0.1:{machine.monitor_port}{page}"))
    return status == HTTPStatus.OK


def active(lab: Lab) -> list[Machine]:
    """The hosts whose node serves: one, of a healthy pair."""
    return [machine for machine in lab.machines.members if answers(machine, "/active")]


def is_whole(lab: Lab) -> bool:
    """Whether one node serves, and the other would take over."""
    pages = [
        [answers(machine, page) for page in ("/active", "/standby")]
        for machine in lab.machines.members
    ]
    return sorted(pages) == [[False, True], [True, False]]


def until_whole(lab: Lab, limit_s: float = 600.0) -> float:
    """Wait for that; returns the seconds it took. Raises ``LabError``."""
    return until(lambda: is_whole(lab), "one node that serves and one that stands by", limit_s)
