"""Registry of the checks, in the order in which their findings explain each other.

``pytest_ddl_register_checks`` lets a plugin add further :class:`Check` entries. A check is a plain function over
records and may be used without this registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from pytest_ddl.equivalence.checks.accumulation import check_accumulation
from pytest_ddl.equivalence.checks.batch import check_batch
from pytest_ddl.equivalence.checks.checkpoint import check_checkpoint
from pytest_ddl.equivalence.checks.clip import check_clip
from pytest_ddl.equivalence.checks.collective_log import check_collective_log
from pytest_ddl.equivalence.checks.collective_value import check_collective_value
from pytest_ddl.equivalence.checks.data_cover import check_data_cover
from pytest_ddl.equivalence.checks.gradient_equality import check_gradient_equality
from pytest_ddl.equivalence.checks.layout import check_layout
from pytest_ddl.equivalence.checks.lint import check_lint
from pytest_ddl.equivalence.checks.liveness import check_liveness
from pytest_ddl.equivalence.checks.loss import check_loss
from pytest_ddl.equivalence.checks.metric import check_metric
from pytest_ddl.equivalence.checks.moves import check_moves
from pytest_ddl.equivalence.checks.nonfinite import check_nonfinite
from pytest_ddl.equivalence.checks.optimizer_state import check_optimizer_state
from pytest_ddl.equivalence.checks.parameter_server import check_parameter_server
from pytest_ddl.equivalence.checks.performance import check_performance
from pytest_ddl.equivalence.checks.replica_equality import check_replica_equality
from pytest_ddl.equivalence.checks.resume import check_resume
from pytest_ddl.equivalence.checks.run import check_run
from pytest_ddl.equivalence.checks.seed import check_seed
from pytest_ddl.equivalence.checks.state import check_state
from pytest_ddl.equivalence.checks.step_equality import check_step_equality
from pytest_ddl.equivalence.checks.uneven import check_uneven
from pytest_ddl.equivalence.checks.write import check_write
from pytest_ddl.equivalence.evidence.comparison import Comparison
from pytest_ddl.equivalence.findings import CheckResult
from pytest_ddl.equivalence.roles import NO_ROLE, Role, Roles
from pytest_ddl.messages import did_you_mean


@dataclass(frozen=True)
class Check:
    """Check with its name, its assertion, and the data that it needs in a record."""

    name: str
    function: Callable[..., CheckResult]
    """Function of a :class:`Comparison`. In a plugin: of the reference, of the distributed run, and of their bounds."""
    title: str
    needs: str
    role: Role = NO_ROLE
    """Part of a run that the check judges. It decides which findings explain those of the check, and which follow."""


CHECKS: tuple[Check, ...] = (
    Check("RUN", check_run, "every rank runs the training function to its end", "nothing", Role.RUN),
    Check("LIVENESS", check_liveness, "every step, save, evaluation and exit ends", "nothing", Role.LIVENESS),
    Check(
        "COLL-LOG",
        check_collective_log,
        "all ranks execute the same collectives in the same order",
        "a log of every rank",
        Role.COLLECTIVES,
    ),
    Check(
        "LINT",
        check_lint,
        "the strategy spans the cluster, and trained variables were made in its scope",
        "facts about the set-up",
        Role.SETUP,
    ),
    Check("LAYOUT", check_layout, "sharded variables are laid out over the mesh as declared", "layouts"),
    Check("BATCH", check_batch, "per-replica batches add up to the global batch", "batch sizes", Role.BATCHES),
    Check(
        "DATA-COVER",
        check_data_cover,
        "the replicas consume the examples that one device consumes",
        "example ids or contents",
        Role.EXAMPLES,
    ),
    Check("WRITE", check_write, "no two ranks write the same file", "several ranks", Role.FILES),
    Check("CKPT", check_checkpoint, "what is read back is complete", "a file saved and read in the same run"),
    Check(
        "RESUME",
        check_resume,
        "interrupted training continues from the point of the interruption",
        "run.restart() in the program",
        Role.RESUMPTION,
    ),
    Check(
        "SEED", check_seed, "replicas draw random numbers of their own, and new ones in every step", "draws", Role.DRAWS
    ),
    Check(
        "ACCUM",
        check_accumulation,
        "micro-batches add up to one update, and nothing moves in between",
        "gradients and snapshots",
        Role.GRADIENTS,
    ),
    Check(
        "CLIP",
        check_clip,
        "clipping acts on the whole gradient, and updates obey the limit",
        "gradients",
        Role.GRADIENTS,
    ),
    Check(
        "NONFINITE",
        check_nonfinite,
        "if a replica's gradient is not finite, all replicas decide as one device does",
        "gradients and snapshots",
        Role.NONFINITE,
    ),
    Check(
        "COLL-VALUE",
        check_collective_value,
        "a reduction gives the sum or mean of the inputs of all replicas",
        "reductions of the program's own",
        Role.COLLECTIVES,
    ),
    Check("STEP-EQ", check_step_equality, "weights equal one device after every step", "snapshots", Role.UPDATES),
    Check(
        "UNEVEN-EQ",
        check_uneven,
        "weights equal one device if a batch does not split evenly",
        "snapshots and batch sizes",
        Role.UPDATES,
    ),
    Check(
        "GRAD-EQ",
        check_gradient_equality,
        "gradients of the replicas combine to those of one device, also if equal weights hide them",
        "gradients and snapshots",
        Role.GRADIENTS,
    ),
    Check(
        "REPLICA-EQ",
        check_replica_equality,
        "all components are bit-equal over replicas and workers",
        "snapshots",
        Role.REPLICAS,
    ),
    Check(
        "STATE-EQ",
        check_state,
        "non-trainable state equals one device, read as it is declared",
        "snapshots",
        Role.STATE,
    ),
    Check(
        "OPT-STATE",
        check_optimizer_state,
        "slots, update count and learning rate equal one device",
        "a watched optimizer",
        Role.SLOTS,
    ),
    Check("MOVES", check_moves, "trainable variables move, frozen ones do not", "snapshots", Role.MOTION),
    Check("PS", check_parameter_server, "asynchronous steps apply every update once", "counters"),
    Check("LOSS-EQ", check_loss, "the reported loss equals that of one device", "losses", Role.LOSS),
    Check(
        "METRIC-EQ",
        check_metric,
        "metrics, named values, and results of fit, evaluate and predict equal one device",
        "metrics, named values or results",
        Role.METRICS,
    ),
    Check("PERF", check_performance, "one trace, few collectives, and no eager step", "graphs and several replicas"),
)
"""Checks in the order in which their findings explain each other."""
ROLES = Roles((check.name, check.role) for check in CHECKS)


def adapted(check: Check) -> Check:
    """Return a check of a plugin, whose function takes both records and the bounds, in the form of :data:`CHECKS`."""
    if any(check.function is own.function for own in CHECKS):
        return check

    def compared(comparison: Comparison) -> CheckResult:
        return check.function(*comparison.records, comparison.tolerance)

    return replace(check, function=compared)


def select(names: Collection[str] | None, known: Sequence[Check] = CHECKS) -> list[Check]:
    """Return the checks with the given names, or all for ``None``. RUN is always among them.

    :raises ValueError: if a name is unknown or no check is named. The message lists the valid names.
    """
    if names is None:
        return list(known)
    if isinstance(names, str):
        raise ValueError(f"checks={names!r} must be a collection of names, for example [{names!r}]")
    valid = [check.name for check in known]
    if not names:
        raise ValueError(
            'checks= names no check: leave it out to run all of them, or name some, for example ["STEP-EQ"]; '
            f"valid: {', '.join(valid)}"
        )
    for name in names:
        if name not in valid:
            hint = did_you_mean(str(name).upper(), valid)
            raise ValueError(f"checks= names an unknown check {name!r}{hint}; valid: {', '.join(valid)}")
    return [check for check in known if check.name in names or check.name == "RUN"]
