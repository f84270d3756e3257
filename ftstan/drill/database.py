"""The local driver for a group that stores in a database, which the operator names.

Like any local group it runs under supervisord and is gone behind the drill; the database is not
ended, nor emptied: whoever starts the drill has seen to it that nothing else is in there. Its
source, which may hold a password, is in the environment of the nodes alone, in no file and in no
word of a command.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.environment import SOURCE_VARIABLE
from ftstan.base.errors import StoreError
from ftstan.drill.errors import DrillError
from ftstan.drill.local import LocalGroup
from ftstan.stores.sql import tables
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.lock import OWNER

if TYPE_CHECKING:
    from ftstan.drill.scenario import Scenario, Step
    from ftstan.drill.workload import Access
    from ftstan.stores.sql.source import Source


class LocalDatabaseGroup(LocalGroup):
    """A driver (``driver.py``) for one drill; ``directory`` is the run's, made already.

    ``text``: ``source`` as it was written.
    """

    def __init__(self, scenario: Scenario, directory: str, source: Source, text: str) -> None:
        super().__init__(scenario, directory)
        self._source = source
        self._text = text
        self._nodes = {member.name for member in self.members}

    @property
    def access(self) -> Access:
        """How clients get in."""
        return replace(super().access, key_words=("--admin-key", self._key))

    async def begin(self, step: Step, node: str) -> None:
        """Do a fault."""
        if step.kind != "kill-sessions":
            await super().begin(step, node)
            return
        try:
            await asyncio.to_thread(self._end_sessions)
        except StoreError as error:
            raise DrillError(error.text, hint=error.hint) from error

    def _end_sessions(self) -> None:
        """Let the database end both sessions of the owner, that of its data first: a commit may be
        under way there.
        """
        session = connect(self._source)
        try:
            row = tables.read_epoch(session)
            names = [row.token, OWNER] if row is not None else [OWNER]
            ended = [session.end_holder(name) for name in names]
        finally:
            session.close()
        if not any(ended):
            raise DrillError(
                f"no session of an owner was found in database {self._source.shown()}",
                hint="see the logs of the nodes",
            )

    @property
    def _key(self) -> str:
        """The key that all nodes share, since they have no datastore with one."""
        return os.path.join(self._store, "admin.key")

    def _stored(self, node: str) -> list[str]:
        del node
        return ["-store", "sql", "-sql_driver", self._source.driver, "-admin_key", self._key]

    def _values(self, name: str, **more: str) -> dict[str, str]:
        if name not in self._nodes:
            more["environment"] = f'{SOURCE_VARIABLE}=""'
        return super()._values(name, **more)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, SOURCE_VARIABLE: self._text}
