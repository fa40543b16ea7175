"""Register the studies of ``python -m asv_bench.studies``: one entry and one module for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Study:
    """Study that ``python -m asv_bench.studies NAME`` runs.

    Its module defines ``add_arguments(parser)`` and ``main(options) -> int``, which returns the exit status.
    """

    name: str
    summary: str
    """Sentence that says what the study does, for ``--help``."""
    data: str
    """Data that it uses, in words."""
    published: str
    """Publication beside whose results it puts its own, in words."""
    module: str


STUDIES: tuple[Study, ...] = (
    Study(
        "mnist-scaling",
        "Train a small network on 1 and on N replicas, and compare scaling and accuracy.",
        "digits, or a file with MNIST",
        "an experiment on 1 and 2 GPUs",
        "asv_bench.studies.mnist.command",
    ),
    Study(
        "medical",
        "Evaluate a small network, a logistic model or an image model under all strategies.",
        "breast cancer, or digits",
        "nothing: published studies use other data",
        "asv_bench.studies.medical_study",
    ),
    Study(
        "async",
        "Compare synchronous, asynchronous and Downpour training, with staleness and with a slow worker.",
        "digits",
        "Dean et al. 2012, Chen et al. 2016, Dutta et al. 2018, Shallue et al. 2019",
        "asv_bench.studies.asynchronous",
    ),
    Study(
        "all-reduce",
        "Time each choice of an all-reduce by message size and number of replicas.",
        "zeros of each size, after a proof with other values",
        "statements on rings and NCCL",
        "asv_bench.studies.all_reduce",
    ),
    Study(
        "lbfgs",
        "Minimize with L-BFGS over 1 to 4 shards, and compare each step with one machine.",
        "digits",
        "Sandblaster L-BFGS (Dean et al. 2012)",
        "asv_bench.studies.lbfgs",
    ),
    Study(
        "model-parallel",
        "Compare model with data parallelism by the width of the layers: step time, memory and bytes.",
        "digits",
        "Dean et al. 2012, Krizhevsky 2014",
        "asv_bench.studies.model_parallel",
    ),
)
"""All studies. To add one, write its module and add an entry here."""
