"""Transports whose engines cannot run here. Stand-ins of their programs enter emulated hosts, or do nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.hosts.remote import RemoteLauncher
from pytest_ddl.hosts.transport import Host, Transport, TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.hosts.transports.docker import Docker
from pytest_ddl.hosts.transports.kubernetes import Kubernetes, cores
from pytest_ddl.hosts.transports.mpi import Mpi
from pytest_ddl.hosts.transports.ssh import Ssh
from tests.hosts.conftest import Emulated
from tests.hosts.test_remote import call, network, started, values

_STAND_IN = """\
#!/bin/sh
here=$(dirname "$0")
echo "$(basename "$0") $*" >> "$here/calls"
case "$1" in get|inspect) exec cat "$here/answer";; esac
for name in host0 host1; do
    case " $* " in *" $name "*)
        while [ "$1" != "$PROGRAM" ]; do shift; done
        exec $(cat "$here/enter-$name") "$@";;
    esac
done
"""
"""Program that prints an answer, or runs what follows the name of a host on this host."""

Stand = Callable[..., Path]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Return a function that puts a program on PATH. It prints an answer, and enters hosts. Return its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PROGRAM", sys.executable)

    def make(program: str, answer: Any = None, enter: Mapping[str, Sequence[str]] | None = None) -> Path:
        (folder / program).write_text(_STAND_IN)
        (folder / program).chmod(0o755)
        (folder / "answer").write_text(json.dumps(answer))
        for name, command in (enter or {}).items():
            (folder / f"enter-{name}").write_text(" ".join(command))
        return folder

    return make


def given(name: str, hosts: str = "", **settings: str) -> TransportArguments:
    return TransportArguments(name, Path("unused"), {}, hosts, settings)


def pod(name: str, address: str = "", phase: str = "Running", cpu: str = "", **metadata: str) -> dict[str, Any]:
    limits = {"limits": {"cpu": cpu}} if cpu else {}
    spec = {"containers": [{"name": "proxy"}, {"name": "main", "resources": limits}]}
    return {"metadata": {"name": name, **metadata}, "spec": spec, "status": {"phase": phase, "podIP": address}}


def container(networks: Mapping[str, str], *, running: bool = True) -> dict[str, Any]:
    state = {"Running": running, "Status": "running" if running else "exited"}
    return {"State": state, "NetworkSettings": {"Networks": {name: {"IPAddress": ip} for name, ip in networks.items()}}}


def test_running_pods_are_hosts(stand_in: Stand) -> None:
    pods = [pod("t-10", "10.0.0.3"), pod("t-2", "10.0.0.2", cpu="1500m"), pod("t-1", "10.0.0.1", cpu="4")]
    gone = [pod("t-0", phase="Pending"), pod("t-3", deletionTimestamp="now")]
    folder = stand_in("kubectl", {"items": [*pods, *gone]})
    made = Kubernetes(given("kubernetes", pods="app=t;role=w", namespace="ns", container="main"))
    assert made.hosts() == [Host("t-1", "10.0.0.1", 4), Host("t-2", "10.0.0.2", 1), Host("t-10", "10.0.0.3")]
    assert made.hosts() is made.hosts()
    assert (folder / "calls").read_text() == "kubectl get pods -n ns -l app=t,role=w -o json\n"
    expected = ["kubectl", "exec", "-i", "-n", "ns", "t-1", "-c", "main", "--", "python3", "-c", "x y"]
    assert made.command(made.hosts()[0], ["python3", "-c", "x y"]) == expected


@pytest.mark.parametrize(("limit", "expected"), [("", 0), ("2", 2), ("0.5", 1), ("100m", 1), ("2500m", 2), ("3.9", 3)])
def test_limits_of_pods_are_slots(limit: str, expected: int) -> None:
    assert cores(limit) == expected


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([], r"no pod with app=t runs \(no pod has them\); start pods, or see `kubectl get pods -l app=t`"),
        ([pod("t-0", phase="Pending")], r"no pod with app=t runs \(t-0 is Pending\)"),
    ],
)
def test_pods_that_do_not_run_are_named(stand_in: Stand, pods: list[Any], message: str) -> None:
    stand_in("kubectl", {"items": pods})
    with pytest.raises(TransportError, match=message):
        Kubernetes(given("kubernetes", pods="app=t")).hosts()


def test_labels_are_needed() -> None:
    with pytest.raises(TransportArgumentError, match=r"the setting pods is missing: .*kubernetes\[pods=app=trainer\]"):
        Kubernetes(given("kubernetes"))


def test_running_containers_are_hosts(stand_in: Stand) -> None:
    answer = [container({"own": "172.17.0.2", "x": "10.0.0.1"}), container({"x": "10.0.0.2"})]
    folder = stand_in("docker", answer)
    made = Docker(given("docker", "a:2,b"))
    assert made.hosts() == [Host("a", "10.0.0.1", 2), Host("b", "10.0.0.2")]
    assert (folder / "calls").read_text() == "docker inspect --type=container a b\n"
    assert made.command(made.hosts()[1], ["python3", "-V"]) == ["docker", "exec", "-i", "b", "python3", "-V"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([container({}), container({}, running=False)], r"b does not run \(exited\); start it with `docker start b`"),
        ([container({"x": "1"}), container({"y": "2"})], r"no network has all the containers \(a: x, b: y\); put them"),
    ],
)
def test_containers_that_cannot_be_used_are_named(stand_in: Stand, answer: list[Any], message: str) -> None:
    stand_in("docker", answer)
    with pytest.raises(TransportError, match=message):
        Docker(given("docker", "a,b")).hosts()


def test_a_host_file_is_read(stand_in: Stand, tmp_path: Path) -> None:
    stand_in("mpirun")
    file = tmp_path / "hosts"
    file.write_text("# hosts\na slots=2 max_slots=9\nb:3\n\nc\nd\nd\ne max_slots=4\n")
    made = Mpi(given("mpi", hostfile=str(file)))
    assert {host.name: host.slots for host in made.hosts()} == {"a": 2, "b": 3, "c": 0, "d": 2, "e": 0}
    expected = ["mpirun", "-n", "1", "--bind-to", "none", "--host", "a", "python3"]
    assert made.command(made.hosts()[0], ["python3"]) == expected


@pytest.mark.parametrize(
    ("hosts", "hostfile", "message"),
    [
        ("", "", "mpi needs hosts: add --ddl-hosts=NAME,NAME"),
        ("a,b", "some", "hostfile=some and --ddl-hosts=a,b are both given: leave one out"),
        ("", "/missing/file", r"hostfile=/missing/file cannot be read \(No such file or directory\): give the path"),
        ("", os.devnull, "hostfile=/dev/null names no host: write one on each line, such as `a slots=2`"),
    ],
)
def test_wrong_hosts_of_mpi_are_refused(hosts: str, hostfile: str, message: str) -> None:
    with pytest.raises(TransportArgumentError, match=message):
        Mpi(given("mpi", hosts, hostfile=hostfile))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Kubernetes(given("kubernetes", pods="a=b")), "kubernetes: the program kubectl is not .*; install kubectl"),
        (Docker(given("docker", "a")), "docker: the program docker is not installed here; install Docker's client"),
        (Mpi(given("mpi", "a")), "mpi: the program mpirun is not installed here; install Open MPI"),
        (Ssh(given("ssh", "a")), "ssh: the program ssh is not installed here; install OpenSSH's client"),
    ],
)
def test_missing_programs_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Transport, message: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TransportError, match=message):
        made.hosts()


def test_a_program_that_fails_is_quoted(stand_in: Stand) -> None:
    folder = stand_in("kubectl")
    logged = 'E1128 12:00:00.000001    77 memcache.go:265] "Unhandled Error" err="could not get the groups"'
    (folder / "kubectl").write_text(f"#!/bin/sh\necho '{logged}' >&2\necho the server is away >&2\nexit 1\n")
    with pytest.raises(TransportError, match=r"`kubectl get pods -l a=b -o json` failed: the server is away$"):
        Kubernetes(given("kubernetes", pods="a=b")).hosts()


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly(each_commit=("kubernetes",))
@pytest.mark.slow
@pytest.mark.parametrize("name", ["kubernetes", "docker", "mpi"])
def test_clusters_run_through_the_programs(
    emulated: Emulated, stand_in: Stand, over: Callable[..., RemoteLauncher], name: str
) -> None:
    hosts = emulated.hosts()
    enter = {host.name: emulated.command(host, []) for host in hosts}
    made: Transport
    if name == "kubernetes":
        stand_in("kubectl", {"items": [pod(host.name, host.address) for host in hosts]}, enter)
        made = Kubernetes(given(name, pods="app=t"))
    elif name == "docker":
        stand_in("docker", [container({"bridge": host.address}) for host in hosts], enter)
        made = Docker(given(name, "host0:2,host1:2"))
    else:
        # mpirun does not know addresses, so the agents find them by the route of their host.
        for host in hosts:
            subprocess.run([*enter[host.name], "ip", "route", "add", "default", "dev", "eth0"], check=True)
        stand_in("mpirun", enter=enter)
        made = Mpi(given(name, "host0:2,host1:2"))
    launcher = over(made)
    with started(launcher, "multi_worker_mirrored") as cluster:
        found = values(call(cluster, network))
    assert len({*found, network()}) == 3
    assert [host.address for host in launcher.group.hosts] == [host.address for host in hosts]
