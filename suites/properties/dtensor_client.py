"""Run one client of a DTensor mesh over several processes, and print what it finds. The test starts the processes."""

from __future__ import annotations

import json


def main() -> None:
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    dtensor.initialize_accelerator_system("CPU")
    mesh = dtensor.create_distributed_mesh([("batch", 4)], device_type="CPU")
    layout = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)
    first = 2 * dtensor.client_id()
    parts = [tf.constant([[3.0**shard, shard + 1.0]]) for shard in (first, first + 1)]
    whole = dtensor.pack(parts, layout)

    @tf.function
    def squares(value: tf.Tensor) -> tf.Tensor:
        return dtensor.relayout(tf.reduce_sum(value**2, axis=0), dtensor.Layout.replicated(mesh, 1))

    told = {
        "client": [dtensor.client_id(), dtensor.num_clients(), dtensor.num_global_devices("CPU")],
        "own": [part.numpy()[0].tolist() for part in dtensor.unpack(whole)],
        "sum": [part.numpy().tolist() for part in dtensor.unpack(squares(whole))],
    }
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main()
