"""When supervisord starts a node again: the values of a ``[program]`` section, as exit statuses ask
for them.

``packaging/supervisor/ftstan.conf`` says the same, and a test holds it to this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Exit statuses (``docs/ft.md``, exit statuses).
FENCED = 75
#: Stopped on purpose, or a mistake that another start does not mend: such a node stays down until
#: somebody looks.
STAY_DOWN = (0, 1, 130, 143)

#: What makes a node come back. ``startsecs`` 0: one that was fenced in its first second is not
#: "failing to start". ``stopwaitsecs``: longer than a clean stop may take, so that supervisord
#: never kills a node that is flushing.
NODE_POLICY: Mapping[str, str] = {
    "autorestart": "unexpected",
    "exitcodes": ",".join(map(str, STAY_DOWN)),
    "startsecs": "0",
    "stopsignal": "TERM",
    "stopwaitsecs": "75",
    "stopasgroup": "false",
    "killasgroup": "true",
}

#: What a listener has to hear.
LISTENER_EVENTS = "PROCESS_STATE_EXITED,PROCESS_STATE_FATAL"

_MEANINGS = {
    0: "stopped by SIGINT; not started again",
    1: "a mistake to correct first, its log says which; not started again",
    2: "a bug, its log says where to report it; started again",
    FENCED: "fenced: it may or can not serve now; started again, as a standby",
    130: "interrupted before it served; not started again",
    143: "stopped by SIGTERM; not started again",
}


def meaning(status: int) -> str:
    """An exit status of a node in words."""
    return _MEANINGS.get(status, f"status {status}; started again")


def section(name: str, command: Sequence[str], values: Mapping[str, str]) -> str:
    """A section of supervisord's configuration; ``name`` with its kind, such as ``program:a``."""
    rows = {"command": " ".join(quoted(word) for word in command), **values}
    return "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in rows.items())]) + "\n"


def quoted(word: str) -> str:
    """A word of a command line as supervisord reads it back: in quotes, percent signs doubled."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
