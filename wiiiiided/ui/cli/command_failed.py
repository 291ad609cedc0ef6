"""The error of a command that cannot go on, where it is not the daemon that refused."""

from __future__ import annotations

from wiiiiided.errors import WiiiiideError


class CommandFailed(WiiiiideError):
    """The command ends here, with an exit code, a sentence and what to do."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint
