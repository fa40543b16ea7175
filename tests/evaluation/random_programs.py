"""Random training functions, drawn by the generators: the same for the same number."""

from __future__ import annotations

from functools import cache, partial

from hypothesis import HealthCheck, Phase, given, seed, settings

from pytest_ddl import generators
from suites.properties.test_training import train
from tests.evaluation.programs import EVERY, Program


@cache
def random_programs(number: int, seed_of_draws: int = 0) -> tuple[Program, ...]:
    """Draw programs without running them; two steps each, with batches that every replica has a share of."""
    drawn: list[Program] = []

    @seed(seed_of_draws)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        generators.models(max_layers=3),
        generators.optimizers(),
        generators.global_batch_sizes(num_replicas=2, kinds=["even", "uneven"]),
    )
    def draw(model: generators.ModelSpec, optimizer: generators.OptimizerSpec, examples: int) -> None:
        job = partial(train, model=model, optimizer=optimizer, examples=examples)
        drawn.append(Program(f"random {len(drawn)}", job, EVERY, {"global_batch_size": examples}))

    draw()
    return tuple(drawn)
