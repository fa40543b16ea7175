"""Entries of the planted performance problems: program, variant, batch, and the advice that must come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_ddl.bench.launching.records import BenchSpec
from tests.planted_performance import programs

TWO_WORKERS = "multi_worker_mirrored[workers=2,replicas=1]"


@dataclass(frozen=True)
class Planted:
    """One training function, and the rules of which one must come first; none for a well-tuned function."""

    program: Callable[[Any], None]
    rules: tuple[str, ...]
    variant: str = TWO_WORKERS
    batch: int = 64
    """Examples on each replica."""
    steps_per_block: int = BenchSpec.steps_per_block

    @property
    def name(self) -> str:
        return self.program.__name__


PLANTED = (
    Planted(programs.slow_map, ("parallel-map",)),
    Planted(programs.heavy_input, ("slow-input",), "one_device"),
    Planted(programs.reads_blocks, ("prefetch",), "one_device", batch=64),
    Planted(programs.tiny_batch, ("small-batch",), batch=2),
    Planted(programs.many_small_reductions, ("one-reduction-each",), batch=32),
    Planted(programs.tiny_packs, ("pack-options",), batch=32),
    Planted(programs.eager, ("eager-step",), "mirrored[replicas=2]", batch=32, steps_per_block=5),
    Planted(programs.retraces, ("retracing",), batch=32),
    Planted(programs.host_call, ("host-calls",)),
    Planted(programs.reads_weights, ("loop-body",)),
    Planted(programs.evaluates_each_step, ("loop-body",), "one_device", batch=32),
    Planted(programs.python_callback, ("loop-body",), "one_device", batch=32),
    Planted(programs.unbalanced, ("unbalanced-batches",), batch=512),
    Planted(programs.slow_worker, ("slow-worker",), batch=128),
    Planted(programs.wide_gradients, ("wide-gradients",), batch=16),
    Planted(programs.large_gradients, ("half-gradients",), batch=256),
    Planted(programs.gathers_everything, ("gathers",), batch=16),
    Planted(programs.dense_embedding, ("dense-embedding",), batch=16),
)
TUNED = (
    Planted(programs.tuned_wide, (), batch=8192),
    Planted(programs.tuned_convolution, (), batch=1024),
    Planted(programs.tuned_wide_on_one_device, (), "one_device", batch=8192),
    Planted(programs.tuned_fit, (), "one_device", batch=256),
)
