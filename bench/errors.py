"""The three ways in which a request can fail before any cell runs, and the exit code of each."""

EXIT_OK = 0
EXIT_FAILED_CELLS = 1
EXIT_USER_ERROR = 2
EXIT_MISSING_DATA = 3


class UserError(Exception):
    """What was asked for cannot be done as asked; the message is one line that says what to change."""


class BadData(UserError):
    """A data file is there but is not what it should be (truncated, wrong shapes, NaN, hostile pickle)."""


class MissingData(Exception):
    """A dataset's files are not here and could not be fetched; the message says which and where to get them."""
