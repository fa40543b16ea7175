"""List the strategies for ``--ddl-list``, with their devices and whether they can run on this machine."""

from __future__ import annotations

import sys

from pytest_ddl.harness import Harness
from pytest_ddl.items.selection import DdlMark


def show_strategies(harness: Harness) -> None:
    """Write for each strategy its name, settings, aliases, summary, size, and availability or the reason against it."""
    out = sys.stdout
    machine = harness.machine
    out.write(
        f"TensorFlow {machine.tensorflow}, Keras {machine.keras or 'none'}, "
        f"{machine.gpus} GPU{'' if machine.gpus == 1 else 's'}, {machine.tpus} TPU cores\n\n"
    )
    mark = DdlMark()
    for definition in harness.registry:
        spec = harness.registry.default(definition.name)
        aliases = f" (or {', '.join(definition.aliases)})" if definition.aliases else ""
        topology = definition.topology(spec)
        processes = len(topology.ranks) + len(topology.servers)
        reason = harness.unavailable(spec, mark)
        out.write(f"{spec}{aliases}\n    {definition.summary}\n")
        plural = "es" if processes > 1 else ""
        out.write(f"    {processes} process{plural}, {topology.devices_per_process} device(s) each\n")
        out.write(f"    {'available' if reason is None else f'not available: {reason}'}\n")
