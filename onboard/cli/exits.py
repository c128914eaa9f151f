"""Exit codes of every `onboard` command, in one table."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the process returns; `MEANINGS` says each in words."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    BAD_INPUT = 3
    OPEN = 4
    FAILED = 5
    BUG = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done, nothing to report",
    Exit.FINDINGS: "done, and there are differences or findings that the options ask to fail on",
    Exit.USAGE: "the command line is wrong",
    Exit.BAD_INPUT: "an input can't be read or is not supported; the message names the field and the next action",
    Exit.OPEN: "done as far as possible, and parts are left open by name (features of a model, conflicts of a merge)",
    Exit.FAILED: "a check or a run failed, or standard output could not be written",
    Exit.BUG: "a bug of this program; please report it with the traceback",
    Exit.INTERRUPTED: "stopped by Ctrl-C",
    Exit.PIPE_CLOSED: "the reader of the output went away",
    Exit.TERMINATED: "stopped by SIGTERM",
}
