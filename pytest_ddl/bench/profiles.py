"""Compute exposed communication from a profile of GPUs: the time in which only collectives ran."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.bench.metrics.communication import exposed_communication_time
from pytest_ddl.bench.metrics.registry import NoNumberError
from pytest_ddl.training.adapter import read_xspace

Span = tuple[float, float]
"""Begin and end in seconds."""

COMMUNICATION = re.compile(r"nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|memcpy ?p2p", re.IGNORECASE)
"""Pattern for kernels and copies that communicate: NCCL's, XLA's own, and copies from GPU to GPU."""
COPY = re.compile(r"^mem(cpy|set)", re.IGNORECASE)
"""Pattern for other copies, which neither compute nor communicate."""


@dataclass(frozen=True)
class ExposedCommunication:
    """Communication in one step according to a profile, on the GPU with the most exposed communication.

    A step ends only when that GPU has finished.
    """

    seconds: float
    """Seconds per step in which a collective ran and no computation did."""
    communication: float
    """Seconds per step in which a collective ran."""
    busy: float
    """Seconds per step in which a collective or a computation ran."""
    devices: int

    @property
    def share(self) -> float:
        """Exposed communication as a share of the time in which the GPU was busy."""
        return self.seconds / self.busy


def exposed_communication(folder: Path, steps: int) -> ExposedCommunication:
    """Compute the seconds per step in which a GPU communicated and did not compute.

    The formula is ``|union(communication) - union(computation)| / steps`` over the kernels of a GPU's streams. Prefer
    it to the proxies if a profile is available, because it excludes communication that overlaps with computation. A
    collective that waits for a slower peer is running, so this waiting is included. Profiling itself makes a step
    slower, so use the share rather than the seconds.

    On CPUs there is no such number. TensorFlow's profiler records there when a collective was started, but not how long
    it took. Source: communication computation overlap of Holistic Trace Analysis (its complement); kernels as the
    TensorFlow profiler writes them (XPlane).

    :param folder: folder that was given to ``tf.profiler.experimental.start``.
    :param steps: number of steps between the start and the stop of the profiler.
    :raises NoNumberError: if the folder has no profile, or the profile has no GPU.
    :raises ValueError: if the number of steps is below 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps!r} must be at least 1")
    paths = sorted(folder.glob("**/*.xplane.pb"))
    if not paths:
        raise NoNumberError(
            f"no profile in {folder}: give the folder of tf.profiler.experimental.start, after its stop"
        )
    shares = []
    for path in paths:
        for kernels in _devices(path.read_bytes()):
            communication = merged(span for name, span in kernels if COMMUNICATION.search(name))
            computation = merged(
                span for name, span in kernels if not COMMUNICATION.search(name) and not COPY.search(name)
            )
            together = length(merged([*communication, *computation]))
            exposed = exposed_communication_time(together, length(computation), steps)
            shares.append((exposed, length(communication) / steps, together / steps))
    if not shares:
        raise NoNumberError(
            f"the profile in {folder} has no GPU: on CPUs, the profiler does not measure the time of collectives; "
            "use communication_time"
        )
    return ExposedCommunication(*max(shares), len(shares))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as ordered spans that do not touch."""
    spans_without_gaps: list[Span] = []
    for begin, end in sorted(spans):
        if spans_without_gaps and begin <= spans_without_gaps[-1][1]:
            spans_without_gaps[-1] = (spans_without_gaps[-1][0], max(end, spans_without_gaps[-1][1]))
        elif end > begin:
            spans_without_gaps.append((begin, end))
    return spans_without_gaps


def length(spans: Sequence[Span]) -> float:
    """Return the seconds that the spans of a union take in total."""
    return sum(end - begin for begin, end in spans)


def _devices(data: bytes) -> Iterator[list[tuple[str, Span]]]:
    """Yield the names and spans of all kernels, for each GPU in a profile that ran any."""
    for plane in read_xspace(data).planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        kernels = []
        for line in plane.lines:
            # The other lines repeat the same time by step, module and scope.
            if line.name.startswith("Stream"):
                for event in line.events:
                    begin = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                    name = plane.event_metadata[event.metadata_id].name
                    kernels.append((name, (begin, begin + event.duration_ps / 1e12)))
        if kernels:
            yield kernels
