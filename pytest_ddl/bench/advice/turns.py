"""Launch a training function with several knobs at the same time, and let the launches take turns.

All launches are alive together and only one of them works at a time, so a slow phase of the machine affects all.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_ddl.bench.advice.facts.changed import Changed, read_notes
from pytest_ddl.bench.advice.facts.evidence import Contender, Measured
from pytest_ddl.bench.advice.facts.gains import gain_of
from pytest_ddl.bench.advice.facts.knobs import KNOBS
from pytest_ddl.bench.gate.lockstep import calibrate
from pytest_ddl.bench.launching.launch import launch
from pytest_ddl.bench.launching.pacing import LATE_TRACES, Alternation, Lane, Pacer, PacingError
from pytest_ddl.bench.launching.ranks import PARTING, BenchError, EndedEarlyError, scratch_folder
from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.harness import Harness

FEWEST_GROUPS = 8
"""Groups of turns before the first look at the intervals."""
LOOK_EVERY = 5
SECONDS = 25.0
"""Seconds after which no group beyond ``FEWEST_GROUPS`` begins."""
NARROW = 1.15
"""Turns end if the upper bound of no gain is more than this factor above the lower one."""
FEWEST_STEPS = 8
"""Steps of each turn, both of its measured part and of the part before it.

A pipeline fills its buffers while others have their turn: with one step before and two measured steps, an input of
20 ms per batch was not seen. The buffer of a distributed iterator and ``prefetch(2)`` hold four batches (TF 2.21).
"""
MOST_TURN_SECONDS = 0.25
"""Seconds above which a turn gets fewer steps than that."""


@contextmanager
def own_harnesses(harness: Harness, number: int) -> Iterator[list[Harness]]:
    """Yield harnesses that fork ranks from the zygote of ``harness``, for one thread each.

    A launcher belongs to one thread. The workers of pytest-xdist share a zygote in the same way.
    """
    from pytest_ddl.launchers import built_in_launchers

    _ = harness.pool.launcher  # starts the zygote
    made: list[Harness] = []
    try:
        for index in range(number):
            # Each has slots of its own, because only one launch works at a time.
            folder = harness.folder / f"turn-{index}"
            folder.mkdir(exist_ok=True)
            made.append(
                Harness(
                    harness.settings,
                    harness.registry,
                    built_in_launchers(harness.settings, shared=True),
                    address=harness.address,
                    folder=folder,
                    machine=harness.machine,
                )
            )
        yield made
    finally:
        for one in made:
            one.close()


def take_turns(harness: Harness, contenders: Sequence[Contender]) -> tuple[dict[str, Measured], dict[str, str]]:
    """Launch all contenders, let them take turns, and return what they gave and why others gave nothing, by id.

    In a group, each contender has two turns, in the order ABC…CBA, so that a drift that is linear over a group cancels
    out. Groups in which something was traced are repeated, as in :mod:`pytest_ddl.bench.gate.lockstep`.

    :raises BenchError: if the first contender fails; the others are compared with it. Or if the program of one ended by
        itself between two turns.
    """
    with scratch_folder(harness.folder, "advice-") as folder:
        with own_harnesses(harness, len(contenders)) as harnesses, ExitStack() as stack:
            running = [
                stack.enter_context(_Running(one, own, folder / str(number)))
                for number, (one, own) in enumerate(zip(contenders, harnesses, strict=True))
            ]
            lanes = {each: lane for each in running if (lane := each.accept()) is not None}
            if running[0] not in lanes:
                raise BenchError(str(running[0].error)) from running[0].error
            turns: dict[_Running, list[tuple[float, ...]]] = {}
            with contextlib.suppress(PacingError):  # the launches know why a rank has left
                turns = _turns(lanes)
            for lane in lanes.values():
                lane.stop()
            done, failed = {}, {}
            for each in running:
                measured = each.result(turns.get(each, []))
                if measured is None:
                    failed[each.contender.id] = str(each.error)
                else:
                    done[each.contender.id] = measured
            broken = [each.contender for each in running if each.failed]
        if contenders[0].id in done:
            return done, failed
        if running[0].failed or not broken:
            raise BenchError(str(running[0].error)) from running[0].error
    if ended := next((one for one in lanes if isinstance(one.error, EndedEarlyError)), None):
        # Its loop has a length of its own. All launches run the same program, so the others would end early, too.
        raise BenchError(str(ended.error)) from ended.error
    # One that failed between two turns has ended those of all.
    done, others = take_turns(harness, [one for one in contenders if one not in broken])
    return done, {**others, **{one.id: failed[one.id] for one in broken}}


class _Running(threading.Thread):
    """Thread of one launch. It is a context manager; leaving it ends the launch."""

    def __init__(self, contender: Contender, harness: Harness, folder: Path) -> None:
        super().__init__(name=f"ddl-advice-{contender.id}", daemon=True)
        folder.mkdir()
        self.contender = contender
        self.deadline = time.monotonic() + contender.bench.timeout
        self._harness, self._folder = harness, folder
        self._pacer = Pacer(folder)
        self._spec = harness.registry.parse_variant(contender.variant)
        self._launch: Launch | None = None
        self._failure: Exception | None = None

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def error(self) -> Exception:
        """Reason why there is no result."""
        if self._failure is not None:
            return self._failure
        return BenchError(
            f"{self.contender.variant} did not finish within timeout={self.contender.bench.timeout:g} s; give more"
        )

    def run(self) -> None:
        train = Changed(self.contender.train, self.contender.knob, str(self._folder))
        bench = self.contender.bench
        if KNOBS[self.contender.knob].batch > 1:
            factor = KNOBS[self.contender.knob].batch
            sizes = {
                name: value * factor
                for name in ("batch_per_replica", "global_batch_size")
                if (value := getattr(bench, name)) is not None
            }
            bench = replace(bench, **sizes)
        try:
            self._launch = launch(self._harness, train, self._spec, bench, address=self._pacer.address)
        except Exception as error:
            self._failure = error
        finally:
            # The main thread may wait for ranks that will never connect.
            self._pacer.close()

    def accept(self) -> Lane | None:
        """Wait until all ranks are warm; ``None`` if the launch fails before."""
        ranks = len(self._harness.registry[self._spec.name].topology(self._spec).ranks)
        try:
            return self._pacer.accept(ranks, self.deadline)
        except (PacingError, OSError):
            self.join(PARTING)
            return None

    def result(self, turns: list[tuple[float, ...]]) -> Measured | None:
        self.join(max(0.0, self.deadline - time.monotonic()) + PARTING)
        if self._launch is None or not turns:
            return None
        return Measured(self.contender, self._launch, read_notes(self._folder), turns)

    def __enter__(self) -> _Running:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        with contextlib.suppress(OSError):
            self._pacer.close()
        launcher = self._harness.pool.started
        if kind is not None and launcher is not None:
            # Its ranks end now: after Ctrl-C, they would first build, trace and warm up.
            launcher.close()
        self.join(PARTING)


def _turns(lanes: dict[_Running, Lane]) -> dict[_Running, list[tuple[float, ...]]]:
    run_alone = Alternation(list(lanes.values()), min(each.deadline for each in lanes)).run_alone

    def steps_of(each: _Running, lane: Lane) -> int:
        samples = calibrate(lambda lane, count: max(run_alone(lane, count, 1)), (lane,), 1)
        step = max(run_alone(lane, 2, 1)) / 2
        return max(samples, min(FEWEST_STEPS, math.ceil(MOST_TURN_SECONDS / step)))

    steps = {each: steps_of(each, lane) for each, lane in lanes.items()}
    samples: dict[_Running, list[tuple[float, ...]]] = {each: [] for each in lanes}
    dropped, begun, done = 0, time.monotonic(), 0
    while done < FEWEST_GROUPS or (time.monotonic() - begun < SECONDS and (done % LOOK_EVERY or not _narrow(samples))):
        seconds: dict[_Running, list[list[float]]] = {each: [] for each in lanes}
        traces = [lane.traces for lane in lanes.values()]
        order = list(lanes)
        for each in (*order, *reversed(order)):
            before = min(FEWEST_STEPS, steps[each])
            seconds[each].append(run_alone(lanes[each], steps[each], before))
        if traces != [lane.traces for lane in lanes.values()] and dropped < LATE_TRACES:
            dropped += 1
            continue
        done += 1
        for each, taken in seconds.items():
            samples[each].append(
                tuple(sum(of_rank) / len(of_rank) / steps[each] for of_rank in zip(*taken, strict=True))
            )
    return samples


def _narrow(found: dict[_Running, list[tuple[float, ...]]]) -> bool:
    """Return whether the intervals of all gains are narrow enough to end."""
    base, *others = ([max(turn) for turn in turns] for turns in found.values())
    gains = [gain_of(base, other, on_average=mean) for other in others for mean in (False, True)]
    return all(gain.high <= NARROW * gain.low for gain in gains)
