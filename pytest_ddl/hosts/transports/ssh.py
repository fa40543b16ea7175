"""Transport ``ssh``: hosts that this user can log in to without a password."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pytest_ddl.hosts.transport import Host, TransportArguments
from pytest_ddl.hosts.transports.programs import require

_OPTIONS = (
    # No question to the user, and an end if the host does not answer.
    *("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"),
    # What the user has configured for terminals: another command, ports that only one ssh can forward, and a process
    # in the background that outlives the run.
    *("RemoteCommand=none", "ClearAllForwardings=yes", "ControlMaster=no"),
)
"""Options of ssh_config(5)."""


class Ssh:
    """Hosts of ``--ddl-hosts``, as ssh names them. The user's own configuration of ssh applies."""

    name = "ssh"
    summary = "hosts of --ddl-hosts, through the program ssh and its configuration"
    defaults: Mapping[str, str] = {"config": ""}

    def __init__(self, arguments: TransportArguments) -> None:
        config = arguments.settings(self.defaults)["config"]
        self._hosts = arguments.host_list()
        self._options = [part for option in _OPTIONS for part in ("-o", option)] + (["-F", config] if config else [])

    def hosts(self) -> Sequence[Host]:
        require(self.name, "ssh", "install OpenSSH's client (openssh-client)")
        return self._hosts

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        # -T: a terminal would change the stream of bytes.
        return ["ssh", "-T", *self._options, host.name, shlex.join(program)]

    def close(self) -> None:
        pass
