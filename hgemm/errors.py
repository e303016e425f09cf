"""The errors that a user may see: each says in one line what is wrong and what to do."""

from __future__ import annotations


class HgemmError(Exception):
    """Root of all errors that are shown as one line, without a traceback; `exit_code` is the command's."""

    exit_code = 1


class RequestError(HgemmError):
    """An illegal or misspelt request: nothing was done."""

    exit_code = 2


class ProblemError(RequestError, ValueError):
    """A problem, or arrays, that the kernel does not take: nothing was launched."""


class LibraryError(HgemmError):
    """A library, or something in it, that cannot be read, trusted or written."""


class DeviceError(HgemmError):
    """No GPU, one that the kernel does not run on, or an error that the driver returned."""


class UnfitError(DeviceError):
    """A variant that this device cannot run, whatever the problem."""
