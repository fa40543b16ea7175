"""``pytest-ddl doctor`` as users call it: the report, JSON, exit statuses, deadlines, and no TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_ddl.cli import main
from pytest_ddl.commands import doctor as command
from pytest_ddl.doctor import examination, imported
from pytest_ddl.doctor.examination import (
    DoctorFinding,
    DoctorProbe,
    ProbeAnswer,
    Status,
    as_text,
    examine,
    ok,
    problem,
    warning,
)
from pytest_ddl.doctor.registry import PROBES
from tests.doctor.child import PATIENT, doctor
from tests.polling import wait_until

FOREVER = 30.0


def blocks() -> DoctorFinding:
    threading.Event().wait()
    return ok("it has answered")


def fails() -> DoctorFinding:
    raise LookupError("a line,\nand another")


def test_this_machine_can_run_tests_and_tensorflow_is_not_imported() -> None:
    heavy = "('tensorflow', 'keras', 'numpy', '_pytest')"
    before = (
        f"import atexit\n{PATIENT}"
        f"atexit.register(lambda: sys.stderr.write(str([name for name in {heavy} if name in sys.modules])))"
    )
    result = doctor(before=before)
    assert (result.returncode, result.stderr) == (0, "[]"), result.stdout
    assert "  ok  processes can connect over 127.0.0.1\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("This machine can run distributed TensorFlow tests: ")


def test_a_name_server_that_does_not_answer_delays_nothing() -> None:
    seam = "from pytest_ddl.doctor import connections\nconnections.addresses_of"
    wait = "['127.0.0.1'] if name == 'localhost' else threading.Event().wait()"
    result = doctor(before=f"import threading\n{seam} = lambda name: {wait}")
    said = "warning: host-name: the probe host-name could not be completed: it gave no answer within 1.4 s\n  fix: "
    assert said in result.stdout
    assert result.returncode == 0, "tests on this machine do not need the name"
    assert result.stdout.splitlines()[-1].startswith("This machine can run distributed TensorFlow tests: ")


@pytest.mark.parametrize(
    ("hosts", "status", "says"),
    [
        ("127.0.1.1 node\n", 1, "problem: localhost: the name localhost was not looked up within "),
        ("127.0.0.1 node localhost\n", 0, "warning: localhost: the name localhost was not looked up within "),
    ],
    ids=["unknown", "slow"],
)
def test_localhost_must_be_known_or_only_slow(hosts: str, status: int, says: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(hosts)
    imports = "from pathlib import Path\nfrom pytest_ddl.doctor import connections\n"
    seam = f"{imports}connections.HOSTS = Path({str(file)!r})\n"
    wait = "import threading\nconnections.addresses_of = lambda _name: threading.Event().wait()"
    result = doctor(before=f"{seam}{wait}")
    assert says in result.stdout
    assert result.returncode == status, result.stdout
    can = "cannot run distributed TensorFlow tests yet: " if status else "can run distributed TensorFlow tests: "
    assert result.stdout.splitlines()[-1].startswith(f"This machine {can}")


def test_probes_run_at_the_same_time() -> None:
    # Each goes on when all have begun, which one after the other would never happen.
    met = threading.Barrier(10)

    def meets() -> DoctorFinding:
        met.wait(FOREVER)
        return ok("all have begun")

    answers = examine(
        DoctorProbe(f"meets-{index}", "g", "it answers", meets, own_seconds=FOREVER) for index in range(10)
    )
    assert [answer.findings for answer in answers] == [(ok("all have begun"),)] * 10


def test_a_probe_that_blocks_is_a_problem() -> None:
    (answer,) = examine([DoctorProbe("blocks", "g", "it answers", blocks, own_seconds=0.1)])
    assert answer.findings[0].status is Status.PROBLEM
    assert "it gave no answer within 0.1 s" in answer.findings[0].found


def test_each_probe_has_a_deadline() -> None:
    assert all(0 < probe.seconds <= 2.0 for probe in PROBES if probe.waits and not probe.on_request)
    assert all(0 < probe.seconds < 120 for probe in PROBES)


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_probes: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "examine", interrupt)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "pytest-ddl doctor: interrupted\n"


def test_a_probe_that_fails_is_a_problem_with_its_reason() -> None:
    good = DoctorProbe("good", "g", "all is well", lambda: [ok("one"), ok("two")])
    answers = examine([DoctorProbe("fails", "g", "it does not fail", fails), good])
    assert answers[0].findings[0].status is Status.PROBLEM
    said = "the probe fails could not be completed: LookupError: a line, and another"
    assert answers[0].findings[0].found == said
    assert answers[1].findings == (ok("one"), ok("two"))


def test_without_threads_only_what_cannot_block_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(examination.threading, "Thread", NoThread)
    quick = DoctorProbe("quick", "g", "", lambda: ok("answered"))
    answers = examine([quick, DoctorProbe("waits", "g", "", blocks, waits=True)])
    assert answers[0].findings == (ok("answered"),)
    assert "can't start new thread" in answers[1].findings[0].found


@pytest.mark.parametrize(
    ("found", "status"), [(ok("fine"), 0), (warning("odd", "mend it"), 0), (problem("bad", "mend it"), 1)]
)
def test_exit_status(
    found: DoctorFinding, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PROBES", (DoctorProbe("one", "group", "", lambda: found),))
    assert main(["doctor"]) == status
    capsys.readouterr()
    assert main(["doctor", "--json"]) == status
    said = json.loads(capsys.readouterr().out)
    expected = {"probe": "one", "group": "group", "status": found.status.value, "found": found.found, "fix": found.fix}
    assert (said["format"], said["findings"]) == (1, [expected])
    assert (said["problems"], said["warnings"]) == (status, int(found.status is Status.WARNING))


def test_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--tensorfow-devices"])
    assert ended.value.code == 2
    assert "--tensorfow-devices" in capsys.readouterr().err


def test_problems_come_last_each_with_its_fix() -> None:
    def answer(name: str, group: str, found: DoctorFinding) -> ProbeAnswer:
        return ProbeAnswer(DoctorProbe(name, group, "", lambda: found), (found,))

    text = as_text(
        [
            answer("a", "first", problem("broken", "mend it")),
            answer("b", "second", ok("right")),
            answer("c", "first", ok("fine")),
            answer("d", "second", warning("odd", "look at it")),
        ]
    )
    assert text == (
        "first\n  ok  fine\nsecond\n  ok  right\n"
        "\nwarning: d: odd\n  fix: look at it\n"
        "\nproblem: a: broken\n  fix: mend it\n"
        "\nThis machine cannot run distributed TensorFlow tests yet: 1 problem, 1 warning, 2 ok\n"
    )


def test_names_are_unique() -> None:
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names)
    assert all(probe.title for probe in PROBES)


def test_no_import_goes_on_after_the_command_was_killed(tmp_path: Path) -> None:
    list_devices = f"import os, signal; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); signal.pause()"
    code = (
        "from pytest_ddl.cli import main\nfrom pytest_ddl.doctor import imported\n"
        f"imported._LIST = {list_devices!r}\nmain(['doctor', '--tensorflow'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as running:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        running.kill()
    child = Path("/proc") / (tmp_path / "pid").read_text()

    def has_ended() -> bool:
        try:
            return ") Z " in (child / "stat").read_text()
        except OSError:
            return True

    wait_until(has_ended, seconds=60.0)


@pytest.mark.slow
def test_tensorflow_is_imported_on_request() -> None:
    found = imported.tensorflow()
    assert found.status is Status.OK
    assert "sees CPU:0" in found.found.replace("device:", "")


@pytest.mark.parametrize(
    ("code", "seconds", "said"),
    [
        ("raise ImportError('libfoo.so: no file')", FOREVER, "status 1: ImportError: libfoo.so: no file"),
        ("import os; os.kill(os.getpid(), 4)", FOREVER, "status -4: it said nothing"),
        ("import signal; signal.pause()", 1.0, "importing TensorFlow did not end within 1 s"),
    ],
)
def test_a_tensorflow_that_cannot_be_imported(
    code: str, seconds: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imported, "_LIST", code)
    monkeypatch.setattr(imported, "SECONDS", seconds)
    found = imported.tensorflow()
    assert found.status is Status.PROBLEM
    assert said in found.found
