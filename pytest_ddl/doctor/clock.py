"""Say whether the clock of this machine is set and follows a server. Timestamps of several hosts are compared."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

from pytest_ddl.doctor.examination import DoctorFinding, ok, warning

SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")
BEGIN = 1_700_000_000
"""A time (November 2023) before which no machine with this version can be."""
_TIME_ERROR = 5
_SIZE_OF_TIMEX = 1024
_FIX = "set it by NTP, for example with `timedatectl set-ntp true`, in a container on its host"


def clock() -> DoctorFinding:
    wall = time.time()
    if wall < BEGIN:
        return warning(f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(wall))}", _FIX)
    said = _is_synchronized()
    if said is False:
        return warning("the clock is not synchronized, so that timestamps of several hosts cannot be compared", _FIX)
    return ok("the clock is set" + (" and synchronized" if said else ""))


def _is_synchronized() -> bool | None:
    """Return whether the clock follows a server, or ``None`` if nothing says so."""
    if SYNCHRONIZED.exists():
        return True
    state = kernel_state()
    return None if state < 0 else state != _TIME_ERROR


def kernel_state() -> int:
    """Return the state of the kernel's clock as adjtimex(2) does, or -1 if it cannot be read. Nothing is changed."""
    libc = ctypes.CDLL(None)
    # The first field of the structure says what to change: nothing. The buffer is larger than the structure.
    return int(libc.adjtimex(ctypes.create_string_buffer(_SIZE_OF_TIMEX))) if hasattr(libc, "adjtimex") else -1
