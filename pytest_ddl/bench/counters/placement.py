"""Find variables that are not on the device of their replica, so that every step moves their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_ddl.training import values
from pytest_ddl.training.watching import Watched


def misplaced(strategy: Any, watched: Iterable[Watched]) -> tuple[str, ...]:
    """List watched variables on devices where their strategy does not keep variables, as ``name: device``.

    Right devices are the strategy's own parameter devices: those of the replicas, the one device of
    ``central_storage``, the servers of ``parameter_server``. If every replica has its own device for parameters, a
    variable that is not distributed lies on only one of them, and the others fetch it. So it is listed too. DTensor
    variables are placed by their layout, which the LAYOUT check verifies. Integer variables are skipped if replicas are
    on GPUs, because TensorFlow has many integer kernels only for the host.
    """
    extended = getattr(strategy, "extended", None)
    if extended is None:
        return ()
    replicas = {_canonical(device) for device in extended.worker_devices}
    allowed = {_canonical(device) for device in extended.parameter_devices}
    on_servers = _is_parameter_server(strategy)
    on_cpus = all(device.startswith("CPU:") for device in replicas)
    found = []
    for item in watched:
        variable = item.variable
        if variable is None or not (on_cpus or "float" in item.record.dtype):
            continue
        devices = _devices(strategy, variable)
        if on_servers:
            wrong = [device for device in devices if "/job:ps/" not in f"{device}/"]
        else:
            wrong = [device for device in devices if _canonical(device) not in allowed]
            shared = allowed == replicas and len(replicas) > 1
            if shared and not values.is_distributed(variable):
                wrong = wrong or devices
        if wrong:
            found.append(f"{item.record.name}: {', '.join(_short(device) for device in wrong)}")
    return tuple(found)


def _devices(strategy: Any, variable: Any) -> list[str]:
    if values.is_distributed(variable):
        return [str(part.device) for part in strategy.experimental_local_results(variable)]
    # A partitioned variable has several parts and no device of its own.
    parts = getattr(variable, "variables", None) or [variable]
    return [str(part.device) for part in parts if getattr(part, "device", None)]


def _canonical(device: str) -> str:
    """Return type and number of a device: ``CPU:0`` for ``/job:localhost/replica:0/task:0/device:CPU:0``."""
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/device:{device}")
    return f"{spec.device_type}:{spec.device_index or 0}"


def _short(device: str) -> str:
    job = next((part[4:] for part in device.split("/") if part.startswith("job:")), "")
    return _canonical(device) if job in ("", "localhost", "worker") else f"{job} {_canonical(device)}"


def _is_parameter_server(strategy: Any) -> bool:
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)
