"""Check the folders to which clusters write: the folder for temporary files, and shared memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pytest_ddl.cluster.obstacles import cannot_write, temporary_folder
from pytest_ddl.doctor import gpu_state
from pytest_ddl.doctor.examination import DoctorFinding, ok, problem, warning

LEAST, ENOUGH = 256 * 2**10, 512 * 2**20
"""Bytes for sockets, locks and logs: a small run passed with 256 KiB, and failed with 64. The larger number also holds
checkpoints of small models."""
SHARED = Path("/dev/shm")
SHARED_MIB = 512
"""NCCL, which joins GPUs of one machine, takes shared memory for each pair; Docker gives 64 MiB by default."""
_MIB = 2**20
_ANOTHER = "set the environment variable TMPDIR to another folder"


def temporary() -> DoctorFinding:
    folder = temporary_folder()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
            file.flush()
        system = os.statvfs(folder)
    except OSError as error:
        found, _, fix = cannot_write(error, folder).partition("; ")
        return problem(found, fix)
    wanted = os.environ.get("TMPDIR")
    if wanted and os.path.abspath(wanted) != folder:
        found = f"TMPDIR={wanted} cannot be written, so temporary files are in {folder}"
        return warning(found, f"free space in {wanted}, or {_ANOTHER}")
    free = system.f_bavail * system.f_frsize
    if free < ENOUGH:
        left = f"{free // _MIB} MiB" if free >= _MIB else f"{free // 1024} KiB"
        found = f"{folder}, the folder for temporary files, has only {left} free"
        fix = f"free space there, or {_ANOTHER}"
        return problem(found, fix) if free < LEAST else warning(f"{found}; checkpoints may need more", fix)
    if system.f_flag & os.ST_NOEXEC:
        found = f"{folder}, the folder for temporary files, is mounted noexec, so compiled operations cannot be loaded"
        return warning(found, f"mount it without noexec, or {_ANOTHER}")
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
