"""Transport ``kubernetes``: running pods that a label selector finds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.hosts.transports.programs import output_of

_INSTALL = "install kubectl, and give it access to the cluster"


class Kubernetes:
    """Pods with labels. The image has Python and pytest-ddl, and each pod runs something that does not end."""

    name = "kubernetes"
    summary = "running pods that have the labels `pods`, such as app=trainer, or app=trainer;role=worker"
    defaults: Mapping[str, str] = {"pods": "", "namespace": "", "container": ""}

    def __init__(self, arguments: TransportArguments) -> None:
        given = arguments.settings(self.defaults)
        if not given["pods"]:
            raise TransportArgumentError(
                "the setting pods is missing: add the labels of the pods, kubernetes[pods=app=trainer]"
            )
        # A comma would end the setting.
        self._labels = given["pods"].replace(";", ",")
        self._namespace = ["-n", given["namespace"]] if given["namespace"] else []
        self._container = given["container"]
        self._hosts: list[Host] = []

    def hosts(self) -> Sequence[Host]:
        if not self._hosts:
            asked = ["kubectl", "get", "pods", *self._namespace, "-l", self._labels, "-o", "json"]
            pods = json.loads(output_of(self.name, asked, _INSTALL))["items"]
            running = [pod for pod in pods if _state(pod) == "Running"]
            if not running:
                found = ", ".join(f"{pod['metadata']['name']} is {_state(pod)}" for pod in pods) or "no pod has them"
                fix = f"start pods, or see `kubectl get pods {' '.join([*self._namespace, '-l', self._labels])}`"
                raise TransportError(f"--ddl-launcher={self.name}: no pod with {self._labels} runs ({found}); {fix}")
            self._hosts = sorted((self._host(pod) for pod in running), key=lambda host: _parts(host.name))
        return self._hosts

    def _host(self, pod: dict[str, Any]) -> Host:
        own = [one for one in pod["spec"]["containers"] if self._container in ("", one["name"])]
        limit = own[0].get("resources", {}).get("limits", {}).get("cpu", "") if own else ""
        return Host(pod["metadata"]["name"], pod["status"].get("podIP", ""), cores(str(limit)))

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        container = ["-c", self._container] if self._container else []
        return ["kubectl", "exec", "-i", *self._namespace, host.name, *container, "--", *program]

    def close(self) -> None:
        pass


def _state(pod: dict[str, Any]) -> str:
    # A pod that is being deleted still has the phase Running.
    return "Terminating" if "deletionTimestamp" in pod["metadata"] else str(pod["status"].get("phase", "Unknown"))


def _parts(name: str) -> list[tuple[int, str]]:
    """Return a key for sorting, by which trainer-2 is before trainer-10."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+)(\d*)", name)]


def cores(limit: str) -> int:
    """Return the whole CPUs of a limit of Kubernetes, such as ``"2"`` or ``"1500m"``, at least 1; 0 without a limit."""
    if not limit:
        return 0
    return max(int(float(limit[:-1]) / 1000 if limit.endswith("m") else float(limit)), 1)
