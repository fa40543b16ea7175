"""Run one training function on one device and under a strategy, on the clusters of a harness."""

from __future__ import annotations

import fcntl
import hashlib
import pickle
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.cluster import GRACE, Answer, Cluster, Fate
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.cluster.state.surroundings import Snapshot
from pytest_ddl.equivalence.checks.run import place_of
from pytest_ddl.equivalence.runs.remote import run_training
from pytest_ddl.equivalence.runs.resuming import joined
from pytest_ddl.equivalence.runs.watchdog import Watchdog
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import ErrorRecord, RankRecord, TrainingRecord
from pytest_ddl.strategies.base import capabilities_of
from pytest_ddl.strategies.spec import HOSTS
from pytest_ddl.tracebacks import own_frame_of_stacks, own_frame_of_traceback
from pytest_ddl.training import collective_log, write_log
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.equivalence.runs.question import Question
    from pytest_ddl.harness import Harness
    from pytest_ddl.strategies.spec import StrategySpec

Stuck = Callable[[Collection[int]], bool]
MakeWatch = Callable[[Cluster, Stuck | None], Stuck]


@dataclass(frozen=True)
class Attempt:
    """One call of a training function on all ranks of a cluster."""

    ranks: list[RankRecord]
    answers: list[Answer]
    num_replicas: int
    ended: float
    """Time on the clock of :func:`time.monotonic` at which all ranks had answered or were given up."""


@dataclass(frozen=True)
class Program:
    """Training function under test, with everything that its runs share."""

    harness: Harness
    references: ReferenceStore
    question: Question
    deadline: float
    """End of the time for all runs, on the clock of :func:`time.monotonic`."""
    packed: ship.Job
    """Call of the training function. Between the runs of a comparison, no code of the user runs in this process."""
    renewed: float | None = None
    """Seconds that each run has, whatever the runs before it took; ``None`` if all share the time until the end."""

    def reference(self, settings: RunSettings) -> TrainingRecord:
        """Run on one device, or return the record of such a run with equal settings."""
        settings = replace(settings, is_reference=True, one_by_one=False, one_worker=False, seeds_by_rank=False)
        spec, asked = self.harness.registry.default("one_device"), self.question
        key = self.packed, settings, self.harness.device_for(spec, asked.mark), asked.test
        return self.references.get(key, lambda: self.anew(settings))

    def anew(self, settings: RunSettings) -> TrainingRecord:
        """Run on one device, even if there is a record of such a run.

        A run whose process ends is repeated once. A framework may end it by a race between its threads, for example if
        an iterator is deleted while a thread reads ahead (TensorFlow 2.21). This would say nothing about the strategy.
        """
        spec = self.harness.registry.default("one_device")
        settings = replace(settings, is_reference=True)
        record = self._run(spec, settings)
        ended = next((error for _rank, error in record.errors if error.type == "died"), None)
        if ended is None:
            return record
        place = place_of(ended)
        why = f"the process of the first run {ended.message}" + (f" ({place})" if place else "")
        return _noted(self._run(spec, settings), Note(NoteKind.RUN_AGAIN, f"one device was run again, because {why}"))

    def distributed(self, settings: RunSettings) -> TrainingRecord:
        """Run under the strategy."""
        return self._run(self.question.spec, settings)

    def _run(self, spec: StrategySpec, settings: RunSettings) -> TrainingRecord:
        """Run the function on a cluster. Errors there become part of the record."""
        started = time.monotonic()
        self.harness.show(f"comparing {self.question.spec}: {_in_words(settings)}")
        if settings.one_worker and "workers" in spec.shape:
            left = {key: value for key, value in spec.shape.items() if key != HOSTS}
            spec = replace(spec, shape={**left, "workers": 1})
        with self.folder() as folder:
            plain = settings.is_reference and settings.without_strategy
            settings = replace(settings, tmp_path=folder, without_strategy=plain)
            ranks, num_replicas = self._attempts(spec, settings)
        return self.record(spec, settings, ranks, num_replicas, time.monotonic() - started)

    def folder(self) -> TemporaryDirectory[str]:
        """Make the folder that all ranks and attempts of one run share, which is removed at the end of its context."""
        return TemporaryDirectory(prefix="run-", dir=self.harness.shared_folder, ignore_cleanup_errors=True)

    def record(
        self, spec: StrategySpec, settings: RunSettings, ranks: Sequence[RankRecord], num_replicas: int, seconds: float
    ) -> TrainingRecord:
        """Return the record of a run of all its ranks."""
        return TrainingRecord(
            strategy=str(spec),
            num_replicas=num_replicas,
            ranks=tuple(ranks),
            global_batch_size=settings.global_batch_size,
            precision=settings.precision,
            seed=settings.seed,
            perturbation=settings.perturbation,
            seconds=seconds,
            neutralized=settings.neutralize,
            capabilities=capabilities_of(self.harness.registry[spec.name]),
            taken_over=tuple(settings.states.values) if settings.states else (),
        )

    def _attempts(self, spec: StrategySpec, settings: RunSettings) -> tuple[list[RankRecord], int]:
        """Call the function, and again in a fresh cluster for as long as all ranks ask for a restart."""
        first = self.attempt(spec, settings)
        ranks = latest = first.ranks
        while restarting := [rank.rank for rank in latest if rank.results.get("restart")]:
            if len(restarting) < len(ranks):
                return [_alone(rank) if rank.rank in restarting else rank for rank in ranks], first.num_replicas
            first_step = min(rank.num_steps for rank in ranks)
            settings = replace(settings, attempt=settings.attempt + 1, first_step=first_step)
            latest = self.attempt(spec, settings, fresh=True).ranks
            ranks = [joined(first, second, first_step) for first, second in zip(ranks, latest, strict=True)]
        return ranks, first.num_replicas

    def attempt(
        self,
        spec: StrategySpec,
        settings: RunSettings,
        *,
        fresh: bool = False,
        environ: Mapping[str, str] | None = None,
        watch: MakeWatch | None = None,
    ) -> Attempt:
        """Call the function once on all ranks of a cluster.

        :param fresh: start a cluster for this attempt only.
        :param environ: additional environment variables of its processes. It is then for this attempt only, too.
        :param watch: function that makes the callback ``stuck`` of :meth:`Cluster.ask` for the cluster.
        """
        job = ship.pack(run_training, (self.question.train, settings), since=self.packed)
        with self.harness.cluster(spec, self.question.mark, fresh=fresh, environ=environ) as cluster:
            several = cluster.num_ranks > 1
            stuck: Stuck | None = None
            if several:
                stuck = Watchdog(settings.tmp_path, settings.attempt, cluster.num_ranks)
            stuck = stuck if watch is None else watch(cluster, stuck)
            deadline = self.deadline if self.renewed is None else time.monotonic() + self.renewed
            answers = cluster.ask(RequestKind.CALL, job, deadline=deadline, patience=_patience, stuck=stuck)
            ended = time.monotonic()
            ranks = [_rank_record(answer, settings, self.harness.text_of_rank) for answer in answers]
            if any(rank.failed for rank in ranks):
                cluster.retired = cluster.retired or "the training function failed in it"
                # If a host has lost the folder meanwhile, this says so instead of an error of each file.
                _ = self.harness.shared_folder
            return Attempt(ranks, answers, cluster.num_replicas, ended)


def _in_words(settings: RunSettings) -> str:
    """Describe a run for the line that a terminal shows while it lasts."""
    how = [
        f"rounding noise, run {settings.perturbation}" if settings.perturbation else "",
        f"some examples of step {', '.join(str(step) for step, _rows in settings.slices)}" if settings.slices else "",
        f"without differences of {' and '.join(settings.neutralize)}" if settings.neutralize else "",
        f"attempt {settings.attempt}" if settings.attempt > 1 else "",
        settings.precision if settings.precision == "float64" else "",
    ]
    where = "on one device" if settings.is_reference else "under the strategy"
    return ", ".join([where, *filter(None, how)])


def _noted(record: TrainingRecord, note: Note) -> TrainingRecord:
    return replace(record, ranks=tuple(replace(rank, notes=(*rank.notes, note)) for rank in record.ranks))


def _alone(rank: RankRecord) -> RankRecord:
    """Return the record of a rank that called ``run.restart()`` while others continued, which is an error."""
    message = "restart() was called on this rank, but not on all; interrupt the program on every rank or on none"
    return replace(rank, error=ErrorRecord("RuntimeError", message, "", rank.num_steps))


def _patience(body: ship.Shipped) -> float | None:
    return GRACE if body.failed else None


def _rank_record(answer: Answer, settings: RunSettings, of_rank: Callable[[str], str]) -> RankRecord:
    if answer.ok:
        record = ship.unpack(answer.body)
        assert isinstance(record, RankRecord)
        output = answer.stdout + answer.stderr
        return replace(record, error=replace(record.error, output=output[-4000:])) if record.error else record
    failure = answer.failure
    # A rank that gave no answer leaves only its logs of executed collectives and of written files.
    writes = write_log.read(write_log.path_of(settings.tmp_path, settings.attempt, answer.rank), of_rank)
    executed = collective_log.read(collective_log.path_of(settings.tmp_path, settings.attempt, answer.rank), of_rank)
    fates = {Fate.DIED: "died", Fate.DEADLINE: "deadline", Fate.STOPPED: "stopped", Fate.STUCK: "stuck"}
    kind = fates.get(answer.fate)
    traces = failure.traceback if failure else answer.stacks
    # A process that is ended by a fault writes its stacks to its output.
    stacks = traces or answer.stderr.partition("Fatal Python error")[2]
    frame = own_frame_of_traceback(traces) if failure else own_frame_of_stacks(stacks)
    error = ErrorRecord(
        type=kind or (failure.type if failure else "unknown"),
        message=failure.message if failure else answer.describe_end(),
        traceback=traces,
        step=executed[-1].step if executed else 0,
        output=(answer.stdout + answer.stderr)[-4000:],
    )
    if frame is not None:
        error = replace(error, file=frame.file, line=frame.line, function=frame.function, source=frame.source)
    return RankRecord(answer.rank, answer.task, replicas=(), error=error, collectives=executed, writes=writes)


class ReferenceStore:
    """Store of reference runs, in files that all xdist workers of the session see."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._known: dict[str, TrainingRecord] = {}

    def get(self, key: tuple[ship.Job, RunSettings, str, str], compute: Callable[[], TrainingRecord]) -> TrainingRecord:
        """Return the reference of a job. The first call computes it.

        :param key: the job, its settings, its device and the test that asks. The test is included because another test
            may have written other files. Changes of the environment, the current directory, the import path and the
            globals of modules are added to the key.
        """
        job, settings, device, test = key
        around = Snapshot.now().since(self._harness.surroundings)
        values = sorted((module, sorted(values.items())) for module, values in job.overrides.items())
        others = repr((settings, device, test, sorted(around.environ.items()), around.directory, around.path, values))
        digest = hashlib.sha256(b"\0".join([job.payload, others.encode()])).hexdigest()
        if digest in self._known:
            return self._known[digest]
        folder = self._harness.folder / "references"
        folder.mkdir(exist_ok=True)
        with (folder / digest).open("ab+") as file:
            # A second process waits here until the first one has computed the reference.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            data = file.read()
            record: TrainingRecord = pickle.loads(data) if data else compute()
            if any(error.type == "deadline" for _rank, error in record.errors):
                return record  # another caller may have more time
            if not data:
                file.write(pickle.dumps(record, protocol=5))
        self._known[digest] = record
        return record
