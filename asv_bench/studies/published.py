"""Published results beside which studies put their own, each with its source and what differs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddl.web.results import Table


@dataclass(frozen=True)
class Publication:
    """Result of a publication."""

    source: str
    says: str
    """Result in words. It has a number only if the number was found in ``link``."""
    link: str
    """Page on which the statement was read, which may show only the abstract."""
    has_number: bool = False

    @property
    def text(self) -> str:
        """The statement, with a remark if no number stands behind it."""
        return self.says if self.has_number else f"{self.says} (in words only: no number was verified)"


DEAN = "Dean et al. 2012, Large scale distributed deep networks"
CHEN = "Chen et al. 2016, Revisiting distributed synchronous SGD (arXiv 1604.00981)"

DOWNPOUR = Publication(
    DEAN,
    "Downpour SGD, an asynchronous method with many model replicas, increases the scale and speed of training",
    "https://andrewng.org/publications/large-scale-distributed-deep-networks",
)
SANDBLASTER = Publication(
    DEAN,
    "Sandblaster, a framework for distributed batch methods with a distributed L-BFGS, increases the scale and speed "
    "of training",
    "https://andrewng.org/publications/large-scale-distributed-deep-networks",
)
LARGER = Publication(
    DEAN,
    "a network 30 times as large as earlier ones was trained, split over machines",
    "https://andrewng.org/publications/large-scale-distributed-deep-networks",
    has_number=True,
)
SYNCHRONOUS = Publication(
    CHEN,
    "asynchrony adds noise; synchronous training with backup workers converges faster and to better test accuracies",
    "https://ai.google/research/pubs/pub45187",
)
SLOW_AND_STALE = Publication(
    "Dutta et al. 2018, Slow and stale gradients can win the race (arXiv 1803.01113)",
    "asynchronous methods alleviate stragglers; stale gradients can harm convergence",
    "https://silo.wisc.edu/wcs-instructor/gauri-josh/",
)
BATCHES = Publication(
    "Shallue et al. 2019, Measuring the effects of data parallelism, JMLR 20(112)",
    "disagreements on how the batch affects a model can largely be explained by how metaparameters were tuned for each "
    "batch",
    "https://research.google/pubs/measuring-the-effects-of-data-parallelism-on-neural-network-training/",
)
RING = Publication(
    "Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations",
    "a ring reaches the lower bound of bytes, and is more efficient than other algorithms for large messages",
    "https://doi.org/10.1016/j.jpdc.2008.09.002",
)
OWN_RING = Publication(
    "Zhang, Experiments on NCCL ring vs tree (16 H100 GPUs on 2 nodes)",
    "NCCL is 7 times as fast as a ring written in Python for large messages, and 34 times for small ones",
    "https://jingchaozhang.github.io/ring-allreduce-vs-nccl",
    has_number=True,
)
WIDE = Publication(
    "Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks (arXiv 1404.5997)",
    "data parallelism for convolutions with model parallelism for dense layers scales better than either alone",
    "https://www.sciencestack.ai/paper/1404.5997v2",
)


def published_table(entries: Sequence[Publication], measured: str, differs: Sequence[tuple[str, str, str]]) -> Table:
    """Return the table of published results beside the measured one, and of what differs.

    :param measured: measured result in words, which the first row shows.
    :param differs: rows of what differs, the published value and the value here.
    """
    rows = [
        ("", "published", "here"),
        *(
            (f"result: {one.source}", f"{one.text} <{one.link}>", "as above" if place else measured)
            for place, one in enumerate(entries)
        ),
        *(tuple(row) for row in differs),
    ]
    return Table("Published and measured, and what differs", tuple(rows))
