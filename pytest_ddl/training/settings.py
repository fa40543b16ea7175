"""The settings of one run of a training function, as they travel to the workers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pytest_ddl.records import Array


@dataclass(frozen=True)
class Injection:
    """A gradient to overwrite in one step, on one replica; on one device, in the gradient of the whole batch."""

    step: int
    replica: int | None
    """``None`` for every replica."""
    variable: int
    """Index of the watched variable."""
    value: float
    """``inf`` or ``nan``."""


@dataclass(frozen=True, eq=False)
class States:
    """Values to go on with after some steps: step -> index of the watched variable -> value."""

    values: Mapping[int, Mapping[int, Array]]

    @cached_property
    def _digest(self) -> str:
        found = hashlib.sha256()
        for step, state in sorted(self.values.items()):
            for index, value in sorted(state.items()):
                found.update(f"{step} {index} {value.dtype} {value.shape} ".encode() + value.tobytes())
        return found.hexdigest()

    def __repr__(self) -> str:
        """Name the values by their digest: settings are told apart by what they print."""
        return f"States({self._digest})"


@dataclass(frozen=True)
class RunSettings:
    """What the controller asks a rank to do with a training function."""

    global_batch_size: int | None = None
    steps: int | None = None
    """``run.steps_limit``: the number of steps after which loops end, or ``None`` for the data's end."""
    seed: int = 0
    precision: str = "native"
    """``float64`` (Keras floatx, dtype policies and floating data become float64), ``float32`` (only half precision
    dtype policies are replaced) or ``native``."""
    is_reference: bool = False
    without_strategy: bool = False
    """A reference runs under TensorFlow's default strategy, as a program does that uses no strategy."""
    perturbation: int = 0
    """p > 0: move weights (at their first watch) and floating data by one ulp, signs drawn from p."""
    ulp_of: str = ""
    """``float16`` or ``bfloat16``: the type whose ulp a perturbation moves by; empty for that of each value."""
    tmp_path: str = ""
    """One folder shared by all ranks of a run."""
    rank_path: str = ""
    """The rank's own folder; filled in by the worker."""
    attempt: int = 1
    """2 where the function is called again in a fresh cluster after ``run.restart()``."""
    slice_step: int | None = None
    """The step of a reference in which the global batch is cut down to ``slice_rows``; ``None`` for no step."""
    slice_rows: tuple[int, ...] = ()
    """Positions, within the global batch of that step, of the examples that one replica consumed."""
    replay: tuple[tuple[int, ...], ...] = ()
    """Per step, the fingerprints of the examples that a reference is to consume instead of its own batches."""
    first_step: int = 0
    """Steps that earlier attempts completed; counting, and ``steps``, go on from here."""
    observe: bool = True
    """Watch what every replica consumes (off where an observing operation would disturb the program)."""
    inject: tuple[Injection, ...] = ()
    loss_scale_factor: float = 1.0
    """What loss scales are multiplied with before the first step, or when the first step made them."""
    constant: bool = False
    """Every step is given the first global batch, and learning rates are 0: what a program shows stays the same."""
    hold: int | None = None
    """After every step beyond this one, trainable weights are set back to what they were after it (0: at first)."""
    follow: bool = False
    """After steps whose batch was uneven, one device goes on with the values that the strategy had then."""
    states: States | None = None
    """Those values, in the settings of a reference."""
    one_by_one: bool = False
    """A coordinator has one worker, and waits for each step before the program schedules the next."""
    neutralise: tuple[str, ...] = ()
    """What is switched off, of ``random`` (by ``low`` numbers, if that is named too) and ``normalization``.

    See :mod:`pytest_ddl.training.neutral`.
    """
    repeat: bool = False
    """Data never ends, and ``fit`` goes on until the run says stop: for measuring steady steps."""
