"""Define the settings of one run of a training function, which the controller sends to the workers."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_ddl.records import Array
from pytest_ddl.run_facts import Call, ReadsOfCall
from pytest_ddl.training.places import Places
from pytest_ddl.training.points import PointPlan


@dataclass(frozen=True)
class GradientInjection:
    """Gradient to overwrite in one step on one replica. On one device it is the gradient of the whole batch."""

    step: int
    replica: int | None
    """``None`` for every replica."""
    variable: int
    """Index of the watched variable."""
    value: float
    """``inf`` or ``nan``."""


@dataclass(frozen=True, eq=False)
class States:
    """Values from which a run continues after some steps: step -> index of the watched variable -> value."""

    values: Mapping[int, Mapping[int, Array]]

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for step, state in sorted(self.values.items()):
            for index, value in sorted(state.items()):
                digest.update(f"{step} {index} {value.dtype} {value.shape} ".encode() + value.tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        """Show a digest of the values, so that settings with equal text have equal values."""
        return f"States({self._digest})"


@dataclass(frozen=True, eq=False)
class Feed:
    """Tensors that the calls of replica functions are given in place of their own, in order."""

    calls: tuple[Call, ...]
    reads: tuple[ReadsOfCall, ...] | None = None
    """Values that each call reads. ``None`` means that the calls read the variables of their own run."""

    @cached_property
    def _digest(self) -> str:
        found = hashlib.sha256()
        read = [array for call in self.reads or () for values in call.values() for array in values]
        for call in (*self.calls, tuple(read)):
            for array in call:
                content = pickle.dumps(array.tolist()) if array.dtype.hasobject else array.tobytes()
                found.update(f"{array.dtype} {array.shape} ".encode() + content)
            found.update(b"|")
        return found.hexdigest()

    def __repr__(self) -> str:
        """Show a digest of the tensors, so that settings with equal text have equal tensors."""
        return f"Feed({self._digest})"


@dataclass(frozen=True)
class RunSettings:
    """Settings with which the controller asks a rank to run a training function."""

    global_batch_size: int | None = None
    steps: int | None = None
    """``run.steps_limit``: number of steps after which loops end. ``None`` means that they end with the data."""
    seed: int = 0
    seeds_by_rank: bool = False
    """True to give the generators of each process other numbers on each rank, as on a real cluster."""
    precision: str = "native"
    """``float64`` (Keras floatx, dtype policies and floating data become float64), ``float32`` (only half precision
    dtype policies are replaced) or ``native``."""
    is_reference: bool = False
    without_strategy: bool = False
    """True if a reference runs under TensorFlow's default strategy, like a program that uses no strategy."""
    perturbation: int = 0
    """If p > 0: move weights (at their first watch) and floating data by one ulp, with random signs seeded by p."""
    ulps: int = 1
    """Number of ulps by which a perturbation moves."""
    ulp_of: str = ""
    """Type whose ulp a perturbation uses: ``float16`` or ``bfloat16``; empty for the type of each value."""
    tmp_path: str = ""
    """Folder that all ranks of a run share."""
    rank_path: str = ""
    """Folder that only this rank uses; see :meth:`of_rank`."""
    attempt: int = 1
    """1 for the first call of the function, 2 for the call in a fresh cluster after ``run.restart()``."""
    slices: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """``(step, rows)``: steps in which a reference keeps only some examples of the global batch, by their positions."""
    told_replicas: int = 0
    """Number of replicas that a reference reads from its strategy and from ``run``; 0 for the true number."""
    shared_by: int = 0
    """Number of replicas whose shared state of metrics a reference imitates: it multiplies this state before each step
    and each batch of an evaluation. 0 for no change."""
    slice_moved: tuple[int, tuple[int, ...]] | None = None
    """Index of a tensor of the examples, and the rows of the only slice from which this tensor is taken instead."""
    replay: tuple[tuple[int, ...], ...] = ()
    """Fingerprints, per step, of the examples that a reference consumes instead of its own batches."""
    first_step: int = 0
    """Number of steps that earlier attempts completed; indices and ``steps`` include them."""
    observe: bool = True
    """True to observe what every replica consumes; false if the observing operation would disturb the program."""
    inject: tuple[GradientInjection, ...] = ()
    loss_scale_factor: float = 1.0
    """Factor that multiplies loss scales before the first step, or when the first step created them."""
    loss_scales: tuple[int, ...] = ()
    """Indices of watched variables that are loss scales, in addition to those whose names say so."""
    constant: bool = False
    """True to give every step the first global batch and learning rate 0, so that all steps report the same numbers."""
    still: bool = False
    """True to train with learning rate 0, on the data of the program."""
    hold: int | None = None
    """Step whose trainable weights are kept: each later step begins with their values after this step.

    0 means their initial values. ``None`` means that all steps change the weights.
    """
    follow: int | None = None
    """Step from which on one device continues, after each step, from the values that the strategy had.

    0 means only after steps with an uneven batch. ``None`` means that one device keeps its own values.
    """
    states: States | None = None
    """Values of the strategy for ``follow``, in the settings of a reference."""
    deterministic: bool = True
    """False if an operation of the program has no deterministic kernel on a GPU; the rank sets it."""
    one_by_one: bool = False
    """True if a coordinator waits for each step before the program schedules the next."""
    one_worker: bool = False
    """True if a coordinator has one worker."""
    keep_calls: bool = False
    """True to keep the tensors that each call of a replica function is given, as the fact ``calls``."""
    feed: Feed | None = None
    """Tensors of another run, which a reference trains on instead of its own."""
    whole: bool = False
    """True to record the whole run as one step."""
    neutralize: tuple[str, ...] = ()
    """Subset of ``random`` and ``normalization`` to switch off, perhaps with ``in-order``.

    See :mod:`pytest_ddl.training.neutral`.
    """
    places: Places | None = None
    """Places of the examples, by which random numbers are the same in both runs; only with ``random``."""
    points: PointPlan | None = None
    """Plan to follow the points of the run; ``None`` if nothing follows them."""
    lineage: tuple[tuple[int, frozenset[str]], ...] = ()
    """Step of the uninterrupted run -> digests of the values of its trainable variables on this rank.

    A later attempt finds by them the step after which it continues.
    """
    repeat: bool = False
    """True to repeat the data, and to let ``fit`` run until the run stops it; used to measure steady steps."""
    overlap: bool = False
    """True if ``run.steps`` schedules steps of a coordinator without waiting for earlier ones, as programs do that are
    not compared step by step."""
    staleness: bool = False
    """True to count, for each overlapping step, the other steps that end between its begin and its end."""

    def of_rank(self, rank: int) -> RunSettings:
        """Return the settings of one rank, with a folder that only this rank uses."""
        folder = Path(self.tmp_path) / f"rank-{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        return replace(self, rank_path=str(folder))
