"""Facts about a program before a forecast: measured times, bytes, links, and the origin of each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum


class Origin(str, Enum):
    """Origin of a number. The report shows it beside the number."""

    STATED = "stated"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Size:
    """Size of a run: what may differ between two points of one curve.

    :raises ValueError: if a number is not positive; it names the number.
    """

    replicas: int
    nodes: int = 1
    batch_per_replica: float | None = None
    """Examples of one replica in one micro-step; ``None`` if it is not known. Then it is the same at all points."""
    accumulation: float = 1.0
    """Micro-steps for each update. Gradients are reduced once for each update."""

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(f"{name}={number!r} must be a positive number")
        if self.nodes > self.replicas:
            raise ValueError(f"nodes={self.nodes} is more than the {self.replicas} replicas")

    @property
    def examples(self) -> float:
        """Examples of one update over all replicas. Without a batch size, the unit is one batch of a replica."""
        return self.replicas * (self.batch_per_replica or 1.0) * self.accumulation


@dataclass(frozen=True)
class Observation:
    """Measured time of one update.

    :raises ValueError: if the time is not positive.
    """

    size: Size
    seconds: float
    spread: float = 0.0
    """Standard error of ``seconds`` as a share of it; 0 if it is not known. For one launch, that of its blocks."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"the time of {self.size.replicas} replicas is {self.seconds!r} s: it must be positive")

    @property
    def throughput(self) -> float:
        """Examples per second over all replicas."""
        return self.size.examples / self.seconds


@dataclass(frozen=True)
class Link:
    """Link between replicas."""

    kind: str = ""
    """Name in words, such as ``NVLink`` or ``20 GbE``."""
    bytes_per_second: float | None = None
    """Bandwidth of one node or device in one direction; ``None`` if no number is known."""
    latency: float | None = None
    """Seconds of a very small all-reduce over this link and two members; ``None`` if it is not known."""
    origin: Origin = Origin.UNKNOWN

    def __str__(self) -> str:
        if self.bytes_per_second is None:
            return self.kind or "unknown link"
        speed = f"{self.bytes_per_second / 1e9:.3g} GB/s, {self.origin.value}"
        return f"{self.kind} ({speed})" if self.kind else speed


UNKNOWN_LINK = Link()


@dataclass(frozen=True)
class ForecastEvidence:
    """All that is known about one program on one kind of machine.

    :raises ValueError: if there is no observation, or a number is not positive; it names the number.
    """

    name: str
    observations: tuple[Observation, ...]
    per_node: int
    """Replicas that share one node."""
    gradient_bytes: float | None = None
    """Bytes that one replica puts into the reductions of one update."""
    collectives: int | None = None
    """Collectives of one update; ``None`` if they were not counted."""
    within: Link = UNKNOWN_LINK
    """Link between the replicas of one node."""
    between: Link = UNKNOWN_LINK
    """Link between nodes."""
    jitter: float | None = None
    """Standard deviation of the time of a step on one replica, as a share of its mean; ``None`` if not measured."""
    servers: int | None = None
    """Parameter servers that take the gradients over the link between nodes; 0 if their number is not known.

    ``None`` for an all-reduce."""
    strategy: str = ""
    """Strategy of the launches; empty for other sources."""
    shares_cores: str = ""
    """Reason why replicas took cores from each other when they were measured. Empty if they did not."""

    def __post_init__(self) -> None:
        if not self.observations:
            raise ValueError(f"{self.name}: there is no measurement to start from")
        for name in ("per_node", "gradient_bytes"):
            number = getattr(self, name)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(f"{self.name}: {name}={number!r} must be a positive number")
        if len({one.size.batch_per_replica is None for one in self.observations}) > 1:
            raise ValueError(
                f"{self.name}: some measurements have a batch size and some do not; give it for all or none"
            )

    @property
    def largest(self) -> Observation:
        """Observation with the most replicas."""
        return max(self.observations, key=lambda one: one.size.replicas)

    @property
    def reference(self) -> Observation:
        """Observation with the fewest replicas, and of these the one with the largest batch."""
        return min(self.observations, key=lambda one: (one.size.replicas, -(one.size.batch_per_replica or 0)))

    @property
    def has_crossed(self) -> bool:
        """True if an observation spans several nodes, so that their link was measured with it."""
        return any(one.size.nodes > 1 for one in self.observations)

    @property
    def has_reduced(self) -> bool:
        """True if an observation has several replicas in one node."""
        return any(one.size.replicas > one.size.nodes for one in self.observations)

    def sized(self, replicas: int, *, strong: bool) -> Size:
        """Return the size of a run with more replicas.

        :param strong: keep the examples of an update over all replicas (strong scaling), and not those of a replica.
        """
        largest = self.largest.size
        nodes = math.ceil(replicas / self.per_node)
        if not strong or largest.batch_per_replica is None:
            return replace(largest, replicas=replicas, nodes=nodes)
        per_replica = largest.examples / replicas
        # The batch on the device is kept as long as there is accumulation to take away.
        batch = min(largest.batch_per_replica, per_replica)
        return Size(replicas, nodes, batch, per_replica / batch)


_UNITS = {
    **dict.fromkeys(("Gbit/s", "Gb/s", "Gbps", "GbE"), 1e9 / 8),
    **dict.fromkeys(("Mbit/s", "Mb/s", "Mbps"), 1e6 / 8),
    "GB/s": 1e9,
    "MB/s": 1e6,
}
"""Units of a bandwidth in bytes per second. A small b is a bit, and a large one is a byte."""
_NUMBER = r"(?<![\w.,+-])(\d+(?:\.\d+)?)"
_BANDWIDTH = rf"{_NUMBER}\s*({'|'.join(_UNITS)})(?![\w/])"
_SPEED = re.compile(_BANDWIDTH)
_STATED = re.compile(rf"\s*{_BANDWIDTH}(?:\s*,\s*(\d+(?:\.\d+)?)\s*(us|µs|ms))?\s*")


def parse_link(text: str) -> Link:
    """Return the link that an option states, such as ``25Gbit/s`` or ``1.1GB/s,80us``.

    :raises ValueError: if the text has another form.
    """
    match = _STATED.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"{text!r} must be a bandwidth such as 25Gbit/s or 1.1GB/s, with a latency or not: 25Gbit/s,80us"
        )
    latency = float(match[3]) * (1e-3 if match[4] == "ms" else 1e-6) if match[3] else None
    return Link("", float(match[1]) * _UNITS[match[2]], latency or None, Origin.STATED)


def named_link(text: str) -> Link:
    """Return the link that a free text describes, such as ``20 GbE (p2.16xlarge)`` or ``InfiniBand``.

    A text without a number, or with ``about`` before it, gives a link whose bandwidth is unknown.
    """
    match = _SPEED.search(text)
    if match is None or float(match[1]) <= 0 or re.search(r"(?i)about\s*$", text[: match.start()]):
        return Link(text.strip())
    return Link(text.strip(), float(match[1]) * _UNITS[match[2]], origin=Origin.STATED)


def efficiencies(observations: Sequence[Observation]) -> list[tuple[Observation, float]]:
    """Return the scaling efficiency of each observation against the one with the fewest replicas and the same batch.

    :formula: (throughput_N / N) / (throughput_1 / 1), for equal batches of a replica and equal accumulation
    """
    measured = []
    for one in observations:
        same = [
            other
            for other in observations
            if other.size.replicas < one.size.replicas
            and (other.size.batch_per_replica, other.size.accumulation)
            == (one.size.batch_per_replica, one.size.accumulation)
        ]
        if same:
            base = min(same, key=lambda other: other.size.replicas)
            per_replica = one.throughput / one.size.replicas
            measured.append((one, per_replica / (base.throughput / base.size.replicas)))
    return measured
