"""An advisory lock on an open file that works within a process as well as between processes."""

from __future__ import annotations

import errno
import os
import sys
from typing import Literal

__all__ = ["LockResult", "try_lock", "unlock"]

LockResult = Literal["held", "busy", "unsupported"]
"""Outcome of `try_lock`: got it, somebody else has it, or the file system has no locks."""

_BUSY = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}

if sys.platform == "win32":
    import msvcrt

    # Windows locks are mandatory, so the locked byte lies where no row ever will.
    _LOCKED_BYTE = 1 << 62

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    # flock and not lockf: POSIX record locks do not exclude a second holder in the same process,
    # and closing any descriptor of the file would drop them.
    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def try_lock(descriptor: int) -> LockResult:
    """Try to become the only holder of a file, without waiting.

    The lock ends with `unlock`, or when its holder and every process forked from it have closed
    the descriptor; a killed process therefore leaves no lock behind.

    Args:
        descriptor: File descriptor that is open for writing.

    Returns:
        ``"held"``, ``"busy"`` or ``"unsupported"``.
    """
    try:
        _lock(descriptor)
    except OSError as error:
        return "busy" if error.errno in _BUSY else "unsupported"
    return "held"


def unlock(descriptor: int) -> None:
    """Give up a lock, also for processes that inherited the descriptor by a fork.

    Args:
        descriptor: File descriptor that `try_lock` returned ``"held"`` for.

    Raises:
        OSError: If the lock is not held.
    """
    _unlock(descriptor)
