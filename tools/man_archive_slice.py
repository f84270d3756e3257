"""``ftstan-archive-slice(1)``, made from the parser that reads its words."""

from __future__ import annotations

from ftstan.spark.archive.script import parser
from tools.man_ftstanctl import actions, examples_of, option
from tools.roff import head, roff


def manual() -> str:
    """The page."""
    words = parser()
    summary = "archive a slice that an ftstan server has removed"
    lines = [
        *head("FTSTAN-ARCHIVE-SLICE", 1, summary, "the command's parser"),
        ".SH SYNOPSIS",
        ".B ftstan\\-archive\\-slice",
        "[\\fIoptions\\fR] \\fICHANNEL\\fR \\fIDAT\\fR \\fIIDX\\fR",
        ".SH DESCRIPTION",
        roff(words.description or ""),
        roff("The server starts it, named by -file_slice_archive_script, for each slice."),
        ".SH OPTIONS",
        *(line for action in actions(words) for line in option(action)),
        ".SH EXIT STATUS",
        *(".TP", "0", "The slice is durable in the spool."),
        *(".TP", "1", "Nothing has changed: the server tries again."),
        *(".TP", "2", "Wrong words."),
        ".SH EXAMPLES",
        *examples_of(words)[2:],
        ".SH SEE ALSO",
        ".BR ftstan (8),",
        ".BR ftstan\\-pipeline (1)",
    ]
    return "\n".join(lines) + "\n"
