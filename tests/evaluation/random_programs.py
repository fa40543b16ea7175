"""Random training functions, drawn by the generators: the same for the same number."""

from __future__ import annotations

from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings

from pytest_ddl import generators
from tests.evaluation.programs import EVERY, Program


@cache
def random_programs(number: int, seed_of_draws: int = 0) -> tuple[Program, ...]:
    """Draw programs without running them; their batches are ones that every replica has a share of."""
    drawn: list[Program] = []

    @seed(seed_of_draws)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(generators.trainings(batches=["even", "uneven"]))
    def draw(spec: generators.TrainingSpec) -> None:
        drawn.append(Program(f"random {len(drawn)}", spec, EVERY, {"global_batch_size": spec.batch}))

    draw()
    return tuple(drawn)
