"""Transport ``docker``: running containers of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ddl.hosts.transport import Host, TransportArguments, TransportError
from pytest_ddl.hosts.transports.programs import output_of

_INSTALL = "install Docker's client, or a `docker` of another engine"


class Docker:
    """Containers of ``--ddl-hosts``, which are in one network of Docker."""

    name = "docker"
    summary = "running containers that --ddl-hosts names, in one network of Docker"
    defaults: Mapping[str, str] = {}

    def __init__(self, arguments: TransportArguments) -> None:
        arguments.settings(self.defaults)
        self._named = arguments.host_list()
        self._hosts: list[Host] = []

    def hosts(self) -> Sequence[Host]:
        if not self._hosts:
            names = [host.name for host in self._named]
            found = json.loads(output_of(self.name, ["docker", "inspect", "--type=container", *names], _INSTALL))
            for name, container in zip(names, found, strict=True):
                if not container["State"]["Running"]:
                    state = container["State"].get("Status", "stopped")
                    fix = f"start it with `docker start {name}`"
                    raise TransportError(f"--ddl-launcher=docker: the container {name} does not run ({state}); {fix}")
            addresses = _addresses(names, found)
            self._hosts = [replace(host, address=address) for host, address in zip(self._named, addresses, strict=True)]
        return self._hosts

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        return ["docker", "exec", "-i", host.name, *program]

    def close(self) -> None:
        pass


def _addresses(names: Sequence[str], containers: Sequence[dict[str, Any]]) -> list[str]:
    """Return the addresses of containers in the first network in which all of them are.

    An address is empty if the container is in the network of its host.
    """
    networks = [container["NetworkSettings"]["Networks"] for container in containers]
    common = next((name for name in networks[0] if all(name in own for own in networks)), None)
    if common is None:
        each = ", ".join(f"{name}: {'+'.join(own) or 'none'}" for name, own in zip(names, networks, strict=True))
        fix = "put them into one with `docker network connect NETWORK CONTAINER`"
        raise TransportError(f"--ddl-launcher=docker: no network has all the containers ({each}); {fix}")
    return [str(own[common]["IPAddress"]) for own in networks]
