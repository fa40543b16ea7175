"""Transport ``netns``: emulated hosts on this machine, each with a network of its own.

Each host is a network namespace with one address. A switch, which is a bridge in one more namespace, connects them. So
every address of the loopback device that a program has forgotten fails here, as on real hosts. The files, the cores and
the memory are those of this machine; with ``tmp=own``, each host has a /tmp of its own.

A small process holds each namespace. It ends when this process does, however that ends, and the kernel then removes the
namespace with its devices.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.hosts.transports.programs import require

MAX_HOSTS = 64
_NETWORK = "198.18.77."
"""Addresses of the hosts: from the range for tests of networks (RFC 2544), which no real network uses."""
_BUCKET, _BUCKET_SECONDS = 65_536, 0.0005
"""Size of the token bucket in bytes, and the seconds of the rate that it holds at least. What fits into the bucket is
not limited, so it must be small beside the gradients of a step. A smaller one costs bandwidth: 2 MB at 1000 Mbit/s took
16.7 ms with 64 KiB, and 17.4 ms with 16 kB (Linux 6.18, timers of high resolution)."""
_OWN_TMP = "mount -t tmpfs tmpfs /tmp && "
"""Command that gives a process with a mount namespace of its own another /tmp. unshare keeps it from spreading."""
_TIME = re.compile(r"\d+(?:\.\d+)?(?:us|ms|s)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""Programs that are needed, with the package of Linux distributions that has them."""
_NO_RIGHT = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile), or run as root"
)


class Netns:
    """Emulated hosts, without root if the kernel allows user namespaces."""

    name = "netns"
    summary = "emulated hosts on this machine: network namespaces with a limited bandwidth and delay"
    defaults: Mapping[str, str] = {"hosts": "2", "mbit": "", "delay": "", "tmp": "shared"}

    def __init__(self, arguments: TransportArguments) -> None:
        given = arguments.settings(self.defaults)
        number = given["hosts"]
        if not number.isdigit() or not 1 <= int(number) <= MAX_HOSTS:
            raise TransportArgumentError(f"hosts={number!r} is not a number from 1 to {MAX_HOSTS}")
        if given["mbit"] and not (_NUMBER.fullmatch(given["mbit"]) and float(given["mbit"])):
            raise TransportArgumentError(f"mbit={given['mbit']!r} is not a positive number of megabits per second")
        if given["delay"] and not _TIME.fullmatch(given["delay"]):
            raise TransportArgumentError(f"delay={given['delay']!r} is not a time such as 2ms or 500us")
        if given["tmp"] not in ("shared", "own"):
            raise TransportArgumentError(f"tmp={given['tmp']!r} is not shared or own")
        self._own_tmp = given["tmp"] == "own"
        self._mbit, self._delay = given["mbit"], given["delay"]
        self._hosts = [Host(f"host{index}", f"{_NETWORK}{index + 1}") for index in range(int(number))]
        self._own_user = os.geteuid() != 0
        """True if the namespaces belong to a user namespace, in which this user may configure them."""
        self._holders: list[subprocess.Popen[bytes]] = []
        """Processes that hold the namespaces: that of the switch, and then those of the hosts."""

    def hosts(self) -> Sequence[Host]:
        if not self._holders:
            for program, package in _PROGRAMS.items():
                require(self.name, program, f"install {package}")
            self._hold(["unshare", *(["-U", "-r"] if self._own_user else []), "-n"])
            self._configure(0, "ip", ["link add switch type bridge", "link set switch up", "link set lo up"])
            for index, host in enumerate(self._hosts):
                self._add(index, host)
        return self._hosts

    def _add(self, index: int, host: Host) -> None:
        enter = self._enter(0, network=False) if self._own_user else []
        self._hold([*enter, "unshare", "-n", *(["-m"] if self._own_tmp else [])], own_tmp=self._own_tmp)
        pid = self._holders[-1].pid
        self._configure(
            0,
            "ip",
            [
                f"link add port{index} type veth peer name eth0 netns {pid}",
                f"link set port{index} master switch",
                f"link set port{index} up",
            ],
        )
        own = [f"address add {host.address}/24 dev eth0", "link set eth0 up", "link set lo up"]
        self._configure(index + 1, "ip", own)
        self._limit(index, self._mbit)

    def limit(self, mbit: float | None, host: Host | None = None) -> None:
        """Change the bandwidth while programs run.

        :param mbit: megabits per second that a host may send from now on; ``None`` for no limit.
        :param host: the host; ``None`` for all hosts.
        """
        for index, one in enumerate(self._hosts):
            if host in (None, one):
                # A missing discipline is not an error, so the status of this command says nothing.
                command = [*self._enter(index + 1), "tc", "qdisc", "del", "dev", "eth0", "root"]
                subprocess.run(command, capture_output=True)
                self._limit(index, "" if mbit is None else f"{mbit:g}")

    def cut(self, host: Host) -> None:
        """Cut a host off from the others: nothing from it or to it arrives, and no error is reported."""
        # Its port stays up, because the kernel would report an end of the signal, and notice its return a second later.
        self._configure(0, "ip", [f"link set port{self._index(host)} nomaster"])

    def heal(self, host: Host) -> None:
        """Connect a host again that was cut off."""
        self._configure(0, "ip", [f"link set port{self._index(host)} master switch"])
        # A search for a neighbor that began before would still end with an error.
        for holder in range(1, len(self._holders)):
            self._configure(holder, "ip", ["neigh flush dev eth0"])

    def _index(self, host: Host) -> int:
        return [one.name for one in self._hosts].index(host.name)

    def _limit(self, index: int, mbit: str) -> None:
        limits = self._limits(mbit)
        if limits:
            self._configure(index + 1, "tc", limits)

    def _limits(self, mbit: str) -> list[str]:
        """Return commands that limit what a host sends. ``tbf`` is a token bucket, see tc-tbf(8) and tc-netem(8)."""
        limits, parent = [], "root"
        if mbit:
            bucket = max(int(float(mbit) * 1e6 / 8 * _BUCKET_SECONDS), _BUCKET)
            limits.append(f"qdisc add dev eth0 root handle 1: tbf rate {mbit}mbit burst {bucket} latency 200ms")
            parent = "parent 1:1"
        if self._delay:
            limits.append(f"qdisc add dev eth0 {parent} netem delay {self._delay}")
        return limits

    def _hold(self, prefix: list[str], *, own_tmp: bool = False) -> None:
        """Start a process that holds a namespace, and wait until it has entered it."""
        pipe = subprocess.PIPE
        program = ["sh", "-c", f"{_OWN_TMP if own_tmp else ''}echo ready; exec cat"]
        holder = subprocess.Popen([*prefix, *program], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        # It has entered the namespace when it says so. Then it waits for the end of its stdin.
        if not holder.stdout.readline():
            said = holder.stderr.read().decode(errors="replace").strip()
            raise TransportError(f"--ddl-launcher=netns: the kernel refuses a network namespace ({said}): {_NO_RIGHT}")

    def _enter(self, holder: int, *, network: bool = True, files: bool = False) -> list[str]:
        """Return the command before a program that runs it in the namespaces of a holder."""
        user = ["-U", "--preserve-credentials"] if self._own_user else []
        own = [*(["-n"] if network else []), *(["-m"] if files else [])]
        return ["nsenter", "-t", str(self._holders[holder].pid), *user, *own]

    def _configure(self, holder: int, program: str, lines: list[str]) -> None:
        batch = ["-force", "-batch", "-"] if program == "tc" else ["-batch", "-"]
        command = [*self._enter(holder), program, *batch]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
        if done.returncode == 0:
            return
        said = "; ".join(line for line in done.stderr.splitlines() if line.strip())
        if "netem" in "".join(lines) and "qdisc" in said:
            raise TransportError(
                f"--ddl-launcher=netns: delay={self._delay} needs the kernel module sch_netem ({said}); load it with "
                "`modprobe sch_netem`, or leave delay out"
            )
        raise TransportError(f"--ddl-launcher=netns: `{program}` failed: {said}")

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        return [*self._enter(self._index(host) + 1, files=self._own_tmp), *program]

    def close(self) -> None:
        while self._holders:
            holder = self._holders.pop()
            for stream in (holder.stdin, holder.stdout, holder.stderr):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()
            holder.wait()
