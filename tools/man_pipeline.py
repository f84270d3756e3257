"""``ftstan-pipeline(1)``, made from the parser that reads the command's words."""

from __future__ import annotations

import argparse

from ftstan.cli.pipeline import running, selecting
from ftstan.cli.pipeline.command import PROGRAM
from ftstan.cli.words.client import add_options
from tools.man_ftstanctl import actions, commands_of, option
from tools.roff import head, roff

_SECTIONS = {
    "SPARK": ("Of every command but archive-script and completion.", running.add_options),
    "MESSAGES": ("Of read, replay and restore: which messages.", selecting.add_messages),
    "SERVERS AND LOGINS": (
        (
            "Of replay; what is not given is taken from the environment and the context, as by "
            "ftstanctl."
        ),
        add_options,
    ),
}


def manual() -> str:
    """The page."""
    described: dict[str, list[argparse.Action]] = {}
    for name, (_, add) in _SECTIONS.items():
        parser = argparse.ArgumentParser(add_help=False)
        add(parser)
        described[name] = actions(parser)
    elsewhere = {
        name: {w for a in found for w in a.option_strings} for name, found in described.items()
    }
    lines = [
        *head("FTSTAN-PIPELINE", 1, "the message log as data, on Spark", "the command's parser"),
        ".SH SYNOPSIS",
        ".B ftstan\\-pipeline",
        "\\fIcommand\\fR [\\fIoptions\\fR]",
        ".SH DESCRIPTION",
        roff(PROGRAM.description),
        roff("Places are datastores, also those of running servers, spools and archives."),
        roff(
            "Whatever goes wrong is one line and a hint on standard error. With --output json, "
            "commands print JSON;"
        ),
        roff(
            "the names of its fields are kept from release to release. Needs the extra "
            "ftstan[spark] and Java 17."
        ),
        *commands_of(PROGRAM, elsewhere),
    ]
    for name, (text, _) in _SECTIONS.items():
        lines += [f".SH {name}", roff(text)]
        lines += [line for action in described[name] for line in option(action)]
    return "\n".join([*lines, ".SH SEE ALSO", ".BR ftstan (8),", ".BR ftstanctl (8)"]) + "\n"
