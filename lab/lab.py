"""What a stage works with: the machines, the inventory, a place for its evidence, and a voice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from lab.machines import MEMBERS, STORAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.machines import Machine, Machines

CLUSTER = "lab"
GROUP = "lab"
MOUNT = "/nss"
DATASTORE = "/nss/lab"
SPOOL = "/nss/spool"
ARCHIVED = "lab.archived"
"""A channel whose limits remove slices soon: they go through the archive script into the spool."""


@dataclass(frozen=True, slots=True)
class Lab:
    """``state`` holds what is kept between runs.

    ``say`` prints a line with the time since the start.
    """

    state: Path
    machines: Machines
    say: Callable[[str], None]

    @property
    def inventory(self) -> Path:
        """The inventory of the pair, for Ansible and for drills."""
        return self.state / "inventory.yml"

    def evidence(self, stage: str) -> Path:
        """A directory for what a stage leaves behind."""
        path = self.state / "evidence" / stage
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write_inventory(self) -> None:
        """The pair as its own users would write it, and how this host reaches it."""
        self.inventory.write_text(
            yaml.safe_dump(inventory(self.machines), sort_keys=False), encoding="utf-8"
        )


def inventory(machines: Machines) -> dict[str, Any]:
    """``ansible/inventories/ft-pair-nfs`` with the names of the lab, and its ports on this host."""
    return {
        "all": {
            "vars": {
                "ansible_host": "127.0.0.1",
                "ansible_user": "root",
                "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_ssh_common_args": " ".join(machines.storage.ssh_options()),
            },
            "children": {
                "ftstan": {
                    "hosts": {name: _reach(machines[name]) for name in MEMBERS},
                    "vars": {
                        "nfs_mount_source": f"{STORAGE}:/srv/data",
                        "nfs_mount_path": MOUNT,
                        "ftstan_cluster_id": CLUSTER,
                        "ftstan_ft_group": GROUP,
                        "ftstan_mount": MOUNT,
                        "ftstan_datastore": DATASTORE,
                        "ftstan_peers": [*MEMBERS],
                        "ftstan_routes_password": "routes of the lab",
                        # Clients on this host reach the guests through forwarded ports only.
                        "ftstan_config": {"cluster": {"no_advertise": True}},
                        "ftstan_writable": [SPOOL],
                        "ftstan_environment": {"FTSTAN_ARCHIVE_SPOOL": SPOOL},
                        "ftstan_streaming": {
                            "file_options": {
                                "slice_max_msgs": 200,
                                "slice_archive_script": "/usr/bin/ftstan-archive-slice",
                            }
                        },
                        "ftstan_store_limits": {"channels": {ARCHIVED: {"max_msgs": 100}}},
                    },
                },
                "nats": {"hosts": {}},
                "pipeline": {"hosts": {}},
            },
        }
    }


def _reach(machine: Machine) -> dict[str, object]:
    return {
        "ansible_port": machine.ssh_port,
        "monitor_port": machine.monitor_port,
        "nats_port": machine.nats_port,
    }
