"""Can the processes of a cluster reach each other? Loopback device, ports, names, proxies and network namespaces."""

from __future__ import annotations

import ipaddress
import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path

from pytest_ddl.cluster import network
from pytest_ddl.cluster.obstacles import LaunchError, loopback_problem, without_proxy_here
from pytest_ddl.cluster.resources import FIRST_PORT, LAST_PORT, PortLease
from pytest_ddl.doctor.examination import DoctorFinding, ok, problem, warning

PORTS = 16
"""Ports that are leased at once: more than the largest default cluster needs, and few enough to take no time."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
HOSTS = Path("/etc/hosts")
CHILD_SECONDS = 1.2
"""Shorter than the deadline of a probe, so that a busy machine is a warning."""
_ISOLATE = "import runpy, sys; runpy.run_path(sys.argv[1])['isolate']()"


def addresses_of(name: str) -> list[str]:
    """Return the IPv4 and IPv6 addresses of a host name. This may block for long if a name server does not answer.

    :raises OSError: if the name has none.
    """
    answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_others, address in answers))


def loopback() -> DoctorFinding:
    down = loopback_problem()
    return ok("processes can connect over 127.0.0.1") if down is None else problem(*down)


def ports() -> DoctorFinding:
    """Lease ports as a cluster does, and connect over one of them."""
    try:
        lease = PortLease(PORTS)
    except LaunchError as error:
        text, _, fix = str(error).partition("; ")
        return problem(text, fix)
    try:
        port = lease.ports[0]
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(1.0)
            with socket.create_connection(server.getsockname(), timeout=1.0), server.accept()[0]:
                pass
    except OSError as error:
        text = f"connecting to port {port} of 127.0.0.1 failed ({error.strerror or error})"
        return problem(text, f"allow connections to ports {FIRST_PORT} to {LAST_PORT} of 127.0.0.1 in the firewall")
    finally:
        lease.release()
    return _outgoing() or ok(f"ports between {FIRST_PORT} and {LAST_PORT} can be leased, and carry connections")


def _outgoing() -> DoctorFinding | None:
    """Return a warning if outgoing connections use the ports of clusters."""
    try:
        first, last = map(int, EPHEMERAL.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    if last < FIRST_PORT or first > LAST_PORT:
        return None
    text = f"outgoing connections use ports {first} to {last}, and may take one between its lease and its server"
    return warning(text, 'sysctl -w net.ipv4.ip_local_port_range="32768 60999"')


def host_name() -> DoctorFinding:
    name = socket.gethostname()
    try:
        addresses = addresses_of(name)
    except OSError as error:
        said = f"the host name {name} has no address ({error.strerror or error})"
        return warning(said, f"add a line with this machine's address and {name} to /etc/hosts")
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        said = f"the host name {name} means {', '.join(addresses)}, where other hosts do not find this one"
        fix = "one machine needs no more; for several, give the name this machine's address in /etc/hosts"
        return warning(said, fix)
    return ok(f"the host name {name} means {', '.join(addresses)}")


def localhost() -> DoctorFinding:
    fix = "add the line '127.0.0.1 localhost' to /etc/hosts"
    answers: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(addresses_of("localhost"))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, name="doctor-localhost-answer", daemon=True).start()
    try:
        answer = answers.get(timeout=CHILD_SECONDS)
    except queue.Empty:
        said = f"the name localhost was not looked up within {CHILD_SECONDS:g} s"
        if not _hosts_have_localhost():
            return problem(f"{said}, and {HOSTS} does not have it", fix)
        slow = "write files before dns in the line 'hosts:' of /etc/nsswitch.conf, or ask again on a calm machine"
        return warning(f"{said}, although {HOSTS} has it", slow)
    if isinstance(answer, OSError):
        return problem(f"the name localhost has no address ({answer.strerror or answer})", fix)
    if isinstance(answer, Exception):
        raise answer
    if "127.0.0.1" not in answer:
        return problem(f"the name localhost means {', '.join(answer)}, not 127.0.0.1", fix)
    return ok("the name localhost means 127.0.0.1")


def _hosts_have_localhost() -> bool:
    try:
        lines = [line.partition("#")[0].split() for line in HOSTS.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return False
    return any(line[:1] == ["127.0.0.1"] and "localhost" in line[1:] for line in lines)


def proxies() -> DoctorFinding:
    changes = {name: value for name, value in without_proxy_here(os.environ).items() if os.environ.get(name) != value}
    if not changes:
        return ok("no proxy is used for 127.0.0.1")
    text = "a proxy is set, which gRPC uses for 127.0.0.1 too, except in ranks of pytest-ddl"
    return warning(text, "export " + " ".join(f"{name}='{value}'" for name, value in sorted(changes.items())))


def namespace() -> DoctorFinding:
    """Try what ``--ddl-network=isolated`` does, in a process of its own, because there is no way back."""
    # The module needs only the standard library, so the child is started without site-packages, which is faster.
    command = [sys.executable, "-I", "-S", "-c", _ISOLATE, str(network.__file__)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        text = f"whether --ddl-network=isolated is possible was not found out within {CHILD_SECONDS:g} s"
        return warning(text, "call pytest-ddl doctor again when this machine is less busy")
    if result.returncode == 0:
        return ok("--ddl-network=isolated is possible")
    said = (result.stderr.strip().splitlines() or [f"it ended with status {result.returncode}"])[-1]
    # The last line of a traceback is the name of the exception and its message, which ends with the fix.
    text, _, fix = said.rpartition("IsolationError: ")[2].partition(": ")
    wanted = "--ddl-network=isolated is not possible"
    return warning(f"{wanted}: {text}", fix or "use --ddl-network=shared, which is the default")
