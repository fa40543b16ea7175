"""Exposed communication out of a profile of GPUs: when a collective ran and nothing was computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.bench.metrics.absent import NoNumberError
from pytest_ddl.training.adapter import read_xspace

Span = tuple[float, float]
"""Begin and end in seconds."""

COMMUNICATION = re.compile(r"nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|memcpy ?p2p", re.IGNORECASE)
"""Names of kernels and copies that communicate: NCCL's, XLA's own, and copies from GPU to GPU."""
COPY = re.compile(r"^mem(cpy|set)", re.IGNORECASE)
"""Other copies, which neither compute nor communicate."""


@dataclass(frozen=True)
class ExposedCommunication:
    """What a profile says of one step; of the GPU on which the most is exposed, as a step ends with it."""

    seconds: float
    """Per step, in which a collective ran and no computation did."""
    communication: float
    """Per step, in which a collective ran."""
    busy: float
    """Per step, in which anything ran."""
    devices: int

    @property
    def share(self) -> float:
        """Of the time in which the GPU was busy."""
        return self.seconds / self.busy


def exposed_communication(folder: Path, steps: int) -> ExposedCommunication:
    """Seconds per step in which a GPU communicated and did not compute.

    ``|union(communication) - union(computation)| / steps`` over the kernels of a GPU's streams. Where a profile can
    be had, it beats the proxies: what overlaps is not counted. A collective that waits for a slower peer runs, so
    that waiting is counted; and profiling itself slows a step down, so take the share rather than the seconds.

    On CPUs there is no such number: TensorFlow's profiler sees there when a collective was started, and not
    how long it took. Source: communication computation overlap of Holistic
    Trace Analysis (its complement); kernels as the TensorFlow profiler writes them (XPlane).

    :param folder: given to ``tf.profiler.experimental.start``.
    :param steps: that were taken between its start and stop.
    :raises NoNumberError: where the folder has no profile, or the profile no GPU.
    :raises ValueError: for a number of steps below 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps!r} must be at least 1")
    paths = sorted(folder.glob("**/*.xplane.pb"))
    if not paths:
        raise NoNumberError(
            f"no profile in {folder}: give the folder of tf.profiler.experimental.start, after its stop"
        )
    found = []
    for path in paths:
        for kernels in _devices(path.read_bytes()):
            communication = merged(span for name, span in kernels if COMMUNICATION.search(name))
            computation = merged(
                span for name, span in kernels if not COMMUNICATION.search(name) and not COPY.search(name)
            )
            together = length(merged([*communication, *computation]))
            exposed = together - length(computation)
            found.append((exposed, length(communication), together))
    if not found:
        raise NoNumberError(
            f"the profile in {folder} has no GPU: on CPUs the profiler does not tell how long a collective takes; "
            "use communication_time"
        )
    exposed, communicated, busy = max(found)
    return ExposedCommunication(exposed / steps, communicated / steps, busy / steps, len(found))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The union, as spans that do not touch, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > begin:
            found.append((begin, end))
    return found


def length(spans: Sequence[Span]) -> float:
    """Seconds that spans of a union take."""
    return sum(end - begin for begin, end in spans)


def _devices(data: bytes) -> Iterator[list[tuple[str, Span]]]:
    """Kernels by name, of each GPU in a profile that ran any."""
    for plane in read_xspace(data).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        kernels = []
        for line in plane.lines:
            # Other lines show the same time again, by step, module and scope.
            if line.name.startswith("Stream"):
                for event in line.events:
                    begin = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                    name = plane.event_metadata[event.metadata_id].name
                    kernels.append((name, (begin, begin + event.duration_ps / 1e12)))
        if kernels:
            yield kernels
