"""List the fires: which process is struck by which signal in which phase, and what pytest must then do."""

from __future__ import annotations

from dataclasses import dataclass

PHASES = (
    "start of the zygote",
    "start of a cluster",
    "set-up",
    "body",
    "tear-down",
    "between two tests",
    "end of the session",
)
"""Points at which a process is struck. Ranks reach set-up, body and tear-down, and the pytest process the others."""
PASSED = {"test_before": "passed", "test_struck": "passed", "test_after": "passed"}


@dataclass(frozen=True)
class Fire:
    """One process that is struck once, and what must follow."""

    target: str
    """``pytest process``, ``zygote``, ``rank``, ``xdist worker`` or ``xdist controller``."""
    signal: str
    """``SIGKILL`` or ``SIGSTOP``. The test resumes a suspended pytest process, as a user does after Ctrl-Z."""
    phases: tuple[str, ...]
    happens: str
    """Consequence in words, for the table of the docs."""
    outcome: str = ""
    """Outcome of the test that runs at that moment. Empty if the run has no report, because pytest was killed."""
    after: str = "passed"
    """Outcome of the tests after it."""
    status: int = 0
    says: str = ""
    """Text that the run prints."""

    def outcomes(self, phase: str) -> dict[str, str]:
        """Return the outcome of each test of the struck project."""
        if not self.outcome:
            return {}
        struck = "test_before" if PHASES.index(phase) < PHASES.index("set-up") else "test_struck"
        later = list(PASSED)[list(PASSED).index(struck) + 1 :]
        return {**PASSED, struck: self.outcome, **dict.fromkeys(later, self.after)}


_IN_A_TEST = ("set-up", "body", "tear-down")
_ERRORS = ("start of a cluster", "set-up")
FIRES = (
    Fire(
        "pytest process",
        "SIGKILL",
        PHASES,
        "The zygote and the ranks end within seconds, and remove their files.",
        status=-9,
    ),
    Fire(
        "pytest process",
        "SIGSTOP",
        PHASES,
        "After it is resumed, the run goes on and all tests pass.",
        outcome="passed",
    ),
    Fire(
        "zygote",
        "SIGKILL",
        ("start of the zygote",),
        "Another zygote is started in its place, and all tests pass.",
        outcome="passed",
    ),
    Fire(
        "zygote",
        "SIGKILL",
        ("start of a cluster", "set-up"),
        "The running test has an error that says how the zygote ended. Another zygote runs the next tests.",
        outcome="error",
        status=1,
        says="the zygote, from which worker processes are forked, has ended: it was killed by SIGKILL",
    ),
    Fire(
        "zygote",
        "SIGKILL",
        ("body",),
        "The running test fails with a message that says how the zygote ended. Another zygote runs the next tests.",
        outcome="failed",
        status=1,
        says="the zygote, from which worker processes are forked, has ended: it was killed by SIGKILL",
    ),
    Fire(
        "zygote",
        "SIGKILL",
        ("tear-down",),
        "The running test has an error that says how the zygote ended. Another zygote runs the next tests.",
        outcome="error",
        status=1,
        says="the zygote, from which worker processes are forked, has ended: it was killed by SIGKILL",
    ),
    Fire(
        "zygote",
        "SIGKILL",
        ("between two tests",),
        "The last test has an error if its ranks held fixtures of a wider scope, because their tear-down is lost. "
        "Another zygote runs the next tests.",
        outcome="error",
        status=1,
        says="fixtures of a wider scope were not torn down: ",
    ),
    Fire("zygote", "SIGKILL", ("end of the session",), "All tests have ended. The run passes.", outcome="passed"),
    Fire(
        "zygote",
        "SIGSTOP",
        ("start of the zygote",),
        "After 120 s without an answer the running test has an error, the zygote is killed, and another one runs the "
        "next tests.",
        outcome="error",
        status=1,
        says="importing TensorFlow took more than",
    ),
    Fire(
        "zygote",
        "SIGSTOP",
        PHASES[1:],
        "Running ranks go on, and all tests pass. The zygote is killed when it must fork or end and does not answer.",
        outcome="passed",
    ),
    Fire(
        "rank",
        "SIGKILL",
        ("start of a cluster",),
        "The test has an error that names the rank. The next test gets a new cluster.",
        outcome="error",
        status=1,
        says="worker:1: was killed by SIGKILL",
    ),
    Fire(
        "rank",
        "SIGKILL",
        ("set-up", "tear-down"),
        "The test has an error that names the rank. The next test gets a new cluster.",
        outcome="error",
        status=1,
        says="rank 1 of 2 (worker:1) was killed by SIGKILL",
    ),
    Fire(
        "rank",
        "SIGKILL",
        ("body",),
        "The test fails with a message that names the rank. The next test gets a new cluster.",
        outcome="failed",
        status=1,
        says="rank 1 of 2 (worker:1) was killed by SIGKILL",
    ),
    Fire(
        "rank",
        "SIGKILL",
        ("between two tests",),
        "The last test has an error if the rank held fixtures of a wider scope, because their tear-down is lost. The "
        "next test gets a new cluster.",
        outcome="error",
        status=1,
        says="fixtures of a wider scope were not torn down: ",
    ),
    Fire("rank", "SIGKILL", ("end of the session",), "All tests have ended. The run passes.", outcome="passed"),
    Fire(
        "rank",
        "SIGSTOP",
        ("start of a cluster",),
        "After 120 s the test has an error that names the rank. The next test gets a new cluster.",
        outcome="error",
        status=1,
        says="worker:1: deadline exceeded",
    ),
    Fire(
        "rank",
        "SIGSTOP",
        ("set-up", "tear-down"),
        "At its deadline the test has an error that names the rank. The next test gets a new cluster.",
        outcome="error",
        status=1,
        says="no stacks: the process is suspended",
    ),
    Fire(
        "rank",
        "SIGSTOP",
        ("body",),
        "At its deadline the test fails with a message that names the rank. The next test gets a new cluster.",
        outcome="failed",
        status=1,
        says="no stacks: the process is suspended",
    ),
    Fire(
        "rank",
        "SIGSTOP",
        ("between two tests",),
        "If the rank held fixtures of a wider scope for the next test, that test has an error at its deadline. "
        "Otherwise the rank is replaced.",
        outcome="passed",
        after="error",
        status=1,
        says="no stacks: the process is suspended",
    ),
    Fire(
        "rank",
        "SIGSTOP",
        ("end of the session",),
        "All tests have ended. The rank is killed and the run passes.",
        outcome="passed",
    ),
    Fire(
        "xdist worker",
        "SIGKILL",
        ("start of a cluster", *_IN_A_TEST),
        "pytest-xdist reports the running test as failed and starts another worker. The ranks of the killed one end.",
        outcome="error",
        status=1,
        says="crashed while running",
    ),
    Fire(
        "xdist worker",
        "SIGSTOP",
        ("start of a cluster", *_IN_A_TEST),
        "After it is resumed, the run goes on and all tests pass.",
        outcome="passed",
    ),
    Fire(
        "xdist controller",
        "SIGKILL",
        ("start of the zygote", "start of a cluster", *_IN_A_TEST),
        "The xdist workers, zygotes and ranks end within seconds, and remove their files.",
        status=-9,
    ),
)
CASES = tuple((fire, phase) for fire in FIRES for phase in fire.phases)
"""Each fire with each of its phases."""


@dataclass(frozen=True)
class Scarcity:
    """Something that a machine lacks, and the line that a test fails with."""

    missing: str
    says: str
    """Part of the message."""
    happens: str = "Each test that needs a cluster has an error with one line"


SCARCITIES = {
    "loopback": Scarcity("The loopback device is down.", "bring it up with `ip link set lo up`"),
    "ports": Scarcity("No port is free.", "`ss -lntup` lists the programs that hold them: end some of them"),
    "descriptors": Scarcity(
        "The number of open files is limited to 16, 24 or 32.",
        "raise the number of open files, for example with `ulimit -n 4096`",
    ),
    "disk": Scarcity(
        "The disk with the folder for temporary files is full, or has no inodes left.",
        "free space there, or set the environment variable TMPDIR to a folder with free space",
    ),
    "forks": Scarcity(
        "The number of processes is limited.",
        "end other processes, or raise their number with `ulimit -u unlimited`, in a container with its pids limit",
        "The test that needs a new cluster has an error with one line",
    ),
    "slots": Scarcity(
        "64 processes ask for a cluster at once, on two cores.",
        "",
        "Each waits for its turn. All get their cluster",
    ),
}
