"""Name the devices that belong to this process."""

from __future__ import annotations


def own_devices(kind: str) -> list[str]:
    """Return the short names of this process's logical devices of a kind, for example ``["GPU:0", "GPU:1"]``.

    In a cluster, ``tf.config.list_logical_devices`` also has the devices of all other tasks (TF 2.21). Their memory
    cannot be read here, and waiting for them raises an ``InternalError``.

    :param kind: ``CPU`` or ``GPU``.
    """
    import tensorflow as tf

    own = tf.DeviceSpec.from_string(tf.constant(0).device)
    found = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind)]
    return [
        f"{device.device_type}:{device.device_index}"
        for device in found
        # Without a cluster, the names have no job.
        if device.job is None or (device.job, device.task) == (own.job, own.task)
    ]
