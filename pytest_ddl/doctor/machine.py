"""Look at what this machine offers to a cluster of two workers: limits, memory, cores, folders, and a clock."""

from __future__ import annotations

import ctypes
import os
import resource
import tempfile
import time
from pathlib import Path

from pytest_ddl.cluster import cgroups
from pytest_ddl.cluster.obstacles import cannot_write, limits, temporary_folder
from pytest_ddl.doctor import gpu_state
from pytest_ddl.doctor.examination import DoctorFinding, ok, problem, warning

RANKS = 2
"""Ranks of the smallest cluster of several workers, ``multi_worker_mirrored``."""
LEAST_DESCRIPTORS, DESCRIPTORS = 36, 1024
"""Open files of a process. With 32 some tests failed, with 36 the cluster worked."""
LEAST_THREADS, THREADS = 200, 4 * 215
"""The ranks, pytest and the process from which ranks are forked had 215 threads on two cores and 206 on one. The larger
number is for several clusters, or more cores."""
LEAST_MIB, RUN_MIB = 570, 730
"""Memory of these processes after a first all-reduce (TensorFlow 2.21): what is not in files, and all. Pages that they
share are counted once."""
MIB = 2 * RUN_MIB
LEAST_ADDRESSES = 3.4 * 2**30
"""Bytes of addresses that a rank had reserved, of which it used few."""
PROC = Path("/proc")
_MIB = 2**20
LEAST_FREE, FREE = 256 * 2**10, 512 * 2**20
"""Bytes for sockets, locks and logs: a small run passed with 256 KiB, and failed with 64. The larger number also holds
checkpoints of small models."""
SHARED = Path("/dev/shm")
SHARED_MIB = 512
"""NCCL, which joins GPUs of one machine, takes shared memory for each pair; Docker gives 64 MiB by default."""
_ANOTHER_FOLDER = "set the environment variable TMPDIR to another folder"
SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")
EARLIEST = 1_700_000_000
"""A time (November 2023) before which no machine with this version can be."""
_TIME_ERROR = 5
_SIZE_OF_TIMEX = 1024
_FIX = "set it by NTP, for example with `timedatectl set-ntp true`, in a container on its host"


def descriptors() -> DoctorFinding:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= DESCRIPTORS:
        return ok(f"a process may open {_number(limit)} files")
    text = f"a process may open only {limit} files (ulimit -n)"
    fix = "ulimit -n 4096" if hard == resource.RLIM_INFINITY or hard >= 4096 else "raise nofile in limits.conf to 4096"
    return problem(text, fix) if limit < LEAST_DESCRIPTORS else warning(f"{text}, which is few for many ranks", fix)


def processes() -> DoctorFinding:
    """Compare the limits on threads with those of two ranks. Root is free of the limit of users."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    left = {}
    if limit != resource.RLIM_INFINITY and os.geteuid() != 0:
        left["this user", "ulimit -u unlimited, or end other processes of this user"] = max(0, limit - _own_threads())
    group = cgroups.processes_left()
    if group is not None:
        left["this container", "raise the container's limit, for example docker run --pids-limit=-1"] = group
    if not left:
        return ok("the number of threads is not limited")
    (who, fix), number = min(left.items(), key=lambda item: item[1])
    if number >= THREADS:
        return ok(f"{who} may start {number} more threads")
    text = f"{who} may start only {number} more threads, and two ranks need about 215"
    return problem(text, fix) if number < LEAST_THREADS else warning(f"{text}, more on many cores", fix)


def _own_threads() -> int:
    """Return the number of threads of this user, which the kernel compares with the limit."""
    total = 0
    for folder in PROC.glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.getuid():
                total += len(os.listdir(folder / "task"))
        except OSError:
            # It has just ended.
            continue
    return total


def memory() -> DoctorFinding:
    limited = limits()
    if limited is not None:
        return problem(*limited) if _address_space() < LEAST_ADDRESSES else warning(*limited)
    left = {"this machine has": _available(), "the memory limit of this container leaves": cgroups.memory_left()}
    known = {who: size for who, size in left.items() if size is not None}
    if not known:
        return warning("nothing says how much memory is free (/proc/meminfo)", "mount /proc")
    who, size = min(known.items(), key=lambda item: item[1])
    if size >= MIB * _MIB:
        return ok(f"{size / 2**30:.1f} GiB of memory are free")
    text = f"{who} only {size // _MIB} MiB of free memory, and two ranks need about {RUN_MIB} MiB"
    fix = "end other programs, or give this machine or container more memory"
    return problem(text, fix) if size < LEAST_MIB * _MIB else warning(f"{text}, larger models more", fix)


def _address_space() -> float:
    """Return the smaller one of the limits on addresses in bytes."""
    soft = [resource.getrlimit(number)[0] for number in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in soft if limit != resource.RLIM_INFINITY), default=float("inf"))


def _available() -> int | None:
    try:
        lines = (PROC / "meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def cores() -> DoctorFinding:
    usable, all_cores = cgroups.usable_cores(), os.cpu_count() or 1
    if usable < RANKS:
        text = f"this process may use {usable:.3g} of {all_cores} cores, and {RANKS} ranks share them"
        return warning(text, "allow more cores (taskset, docker run --cpus), or raise --ddl-timeout")
    return ok(f"{usable:.3g} of {all_cores} cores for {RANKS} ranks")


def _number(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)


def temporary() -> DoctorFinding:
    folder = temporary_folder()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
            file.flush()
        system = os.statvfs(folder)
    except OSError as error:
        text, _, fix = cannot_write(error, folder).partition("; ")
        return problem(text, fix)
    wanted = os.environ.get("TMPDIR")
    if wanted and os.path.abspath(wanted) != folder:
        text = f"TMPDIR={wanted} cannot be written, so temporary files are in {folder}"
        return warning(text, f"free space in {wanted}, or {_ANOTHER_FOLDER}")
    free = system.f_bavail * system.f_frsize
    if free < FREE:
        left = f"{free // _MIB} MiB" if free >= _MIB else f"{free // 1024} KiB"
        text = f"{folder}, the folder for temporary files, has only {left} free"
        fix = f"free space there, or {_ANOTHER_FOLDER}"
        return problem(text, fix) if free < LEAST_FREE else warning(f"{text}; checkpoints may need more", fix)
    if system.f_flag & os.ST_NOEXEC:
        text = f"{folder}, the folder for temporary files, is mounted noexec, so compiled operations cannot be loaded"
        return warning(text, f"mount it without noexec, or {_ANOTHER_FOLDER}")
    return ok(f"{folder} can be written, {free / 2**30:.1f} GiB are free")


def shared_memory() -> DoctorFinding:
    """Look at shared memory, which only GPUs need."""
    try:
        system = os.statvfs(SHARED)
    except OSError as error:
        size, said = 0, f"{SHARED} cannot be used ({error.strerror or error})"
    else:
        size = system.f_bavail * system.f_frsize
        said = f"{SHARED} has {size / 2**30:.2f} GiB free"
    if size >= SHARED_MIB * _MIB:
        return ok(said)
    if not gpu_state.gpu_names():
        return ok(f"{said}, which only several GPUs would need")
    return warning(f"{said}, and NCCL needs it for several GPUs", "docker run --shm-size=1g, or mount a larger tmpfs")


def clock() -> DoctorFinding:
    wall = time.time()
    if wall < EARLIEST:
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
