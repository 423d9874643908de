"""Statuses of the library as exceptions."""

from ._library import ErrorStruct


class Error(RuntimeError):
    """The library refused or failed; the text says what was expected, what was found and what to do."""


class InvalidError(Error, ValueError):
    """The input contradicts itself or the program: text, sizes, pointers."""


class UnsupportedError(Error, NotImplementedError):
    """Correct, but no rule or no path on this device serves it; the text names the limit."""


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed."""


class DeviceError(Error):
    """The device or its driver failed or is missing."""


class FileError(Error, OSError):
    """A file could not be read or written."""


_BY_STATUS = {1: InvalidError, 2: UnsupportedError, 3: OutOfMemoryError, 4: DeviceError, 5: FileError}


def check(status: int, error: ErrorStruct) -> None:
    """Raises what `status` means, with the message in `error`."""
    if status:
        raise _BY_STATUS.get(status, Error)(error.message.decode("utf-8", "replace"))
