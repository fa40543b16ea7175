"""Access private parts of TensorFlow and Keras in one place, with the reason for each.

If a release lacks a private attribute, the function returns an approximation from the public
interface and raises no exception.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from pytest_ddl.training.replacing import Replacements


def module_of(name: str, *needed: str) -> Any:
    """Return ``tensorflow.python.NAME``, or ``None`` if the release lacks this module or one of these attributes."""
    try:
        module = importlib.import_module(f"tensorflow.python.{name}")
    except ImportError:
        return None
    return module if all(hasattr(module, attribute) for attribute in needed) else None


def flatten_layers(layer: Any) -> Iterator[Any]:
    """Yield a layer and all layers inside it, each once.

    ``Layer._flatten_layers`` (Keras 2.4 to 3.15 and tf_keras): the public ``Model.layers`` lacks
    layers that a subclassed layer keeps in attributes.
    """
    flatten = getattr(layer, "_flatten_layers", None)
    found = list(flatten()) if flatten is not None else [layer, *getattr(layer, "submodules", ())]
    seen: set[int] = set()
    for item in found:
        if id(item) not in seen:
            seen.add(id(item))
            yield item


def created_trainable(layer: Any) -> list[Any] | None:
    """Return the layer's own weights that were created trainable, whatever ``layer.trainable`` is now.

    ``_trainable_variables`` (Keras 3.0 to 3.15) and ``_trainable_weights`` (tf_keras): in the public
    interface, a frozen kernel and a moving mean look the same once ``layer.trainable`` is False.
    """
    for name in ("_trainable_variables", "_trainable_weights"):
        variables = getattr(layer, name, None)
        if variables is not None:
            return list(variables)
    return None


def tf_seed() -> int | None:
    """Return the global seed of TensorFlow, which has a public setter but no getter (TF 2.0 to 2.21)."""
    context = module_of("eager.context", "global_seed")
    seed = None if context is None else context.global_seed()
    return None if seed is None else int(seed)


def as_autograph_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as AutoGraph would call it here: converted in a traced function, unchanged outside.

    ``tf.__internal__.autograph`` (TF 2.4 to 2.21) is what TensorFlow gives to Keras for functions that call a user's
    function. ``Strategy.run`` does the same with its argument.
    """
    import tensorflow as tf

    autograph = getattr(getattr(tf, "__internal__", None), "autograph", None)
    if autograph is None:
        return function
    here = autograph.control_status_ctx()
    converted = autograph.tf_convert(function, here, convert_by_default=False)

    def called(*args: Any, **kwargs: Any) -> Any:
        # A function that a converted function defines comes back as it is, and obeys the context that calls it.
        with here:
            return converted(*args, **kwargs)

    return called


def is_traced_by_strategy(function: Any) -> bool:
    """Return True if a replica function is a ``tf.function`` that a strategy traces with all replicas in one graph.

    Only so may it reduce. One for XLA stays apart, because what observes a graph cannot be compiled.
    ``Function._jit_compile`` (TF 2.4 to 2.21) has no public getter.
    """
    import tensorflow as tf

    kinds = tf.types.experimental.PolymorphicFunction
    return isinstance(function, kinds) and not getattr(function, "_jit_compile", None)


def with_body(function: Any, body: Callable[..., Any]) -> Any:
    """Return a ``tf.function`` with the options of another one, which traces ``body``.

    ``_autograph`` and ``_reduce_retracing`` (TF 2.13 to 2.21) have no public getters.
    """
    import tensorflow as tf

    return tf.function(
        body,
        input_signature=function.input_signature,
        autograph=getattr(function, "_autograph", True),
        reduce_retracing=getattr(function, "_reduce_retracing", False),
    )


@contextmanager
def unseeded_data_apart(rank: int, seed: int) -> Iterator[None]:
    """Make datasets without a seed draw different numbers on each rank, while TensorFlow's global seed is ``seed``.

    All of ``tf.data`` gets its seeds from ``tensorflow.python.data.util.random_seed.get_seed`` (TF 2.0 to 2.21).
    A different global seed per rank would be wrong, because it also changes the order of a ``shuffle(seed=1)``.
    """
    random_seed = module_of("data.util.random_seed", "get_seed")
    if random_seed is None or not rank:
        yield
        return
    original = random_seed.get_seed

    def get_seed(seed_of_op: Any) -> Any:
        first, second = original(seed_of_op)
        return (first, second + rank) if seed_of_op is None and tf_seed() == seed else (first, second)

    with Replacements().put(random_seed, "get_seed", get_seed):
        yield


def seed_all_threads(put: Replacements, keras: Any) -> None:
    """Let the seed of tf_keras hold in all threads until ``put`` restores it. Other flavors of Keras stay as they are.

    ``_SEED_GENERATOR`` (tf_keras 2.13 to 2.21) belongs to the thread that sets the seed. Layers that ``fit`` builds
    under a strategy are made in the thread of a replica. Their initializers would draw from Python's global generator,
    and what the program draws there would depend on the strategy.
    """
    backend = sys.modules.get(f"{keras.__name__}.src.backend")
    if hasattr(backend, "_SEED_GENERATOR"):
        put.put(backend, "_SEED_GENERATOR", SimpleNamespace())


def expects_partial(status: Any) -> bool:
    """Return True if the program called ``expect_partial()`` on the result of ``Checkpoint.restore``.

    ``_checkpoint.expect_partial`` (TF 2.0 to 2.21): the status object does not publish it.
    """
    return bool(getattr(getattr(status, "_checkpoint", None), "expect_partial", False))


def within_xla() -> bool:
    """Return True while tracing inside a ``tf.function(jit_compile=True)`` that another graph calls.

    ``control_flow_util.GraphOrParentsInXlaContext`` (TF 2.5 to 2.21): only the function object has this attribute,
    and there is no public way from a graph to the function that it is traced for.
    """
    import tensorflow as tf

    module = module_of("ops.control_flow_util", "GraphOrParentsInXlaContext")
    return module is not None and bool(module.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def weights_of(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer was built for, in order.

    ``_trainable_variables`` (Keras 3.0 to 3.15): ``optimizer.apply(gradients)`` may leave them out, and the public
    ``optimizer.variables`` are the optimizer's own.
    """
    return list(getattr(optimizer, "_trainable_variables", ()))


def checkpoint_prefix(manager: Any) -> str:
    """Return the path to which a ``tf.train.CheckpointManager`` appends a number.

    ``_prefix`` (TF 2.0 to 2.21): ``directory`` is public, but the ``checkpoint_name`` in it is not.
    """
    return str(getattr(manager, "_prefix", os.path.join(manager.directory, "ckpt")))


def outermost_graph() -> Any:
    """Return the graph of the function that was called eagerly, while it is traced; ``None`` in eager mode.

    ``FuncGraph.outer_graph`` (TF 2.0 to 2.21): only the innermost graph is public, which may be the graph
    of a branch or of a replica function.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(getattr(graph, "outer_graph", None), "building_function", False):
        graph = graph.outer_graph
    return graph


def tensor_float_32() -> Any:
    """Return the module that switches TensorFloat-32 by ``enable(bool)``, and has ``is_enabled()``.

    ``tensorflow.python.framework.config._pywrap_tensor_float_32_execution`` (TF 2.4 to 2.21). The public function
    ``tf.config.experimental.enable_tensor_float_32_execution`` has several names, and a program may have imported it.
    """
    config = module_of("framework.config", "_pywrap_tensor_float_32_execution")
    return getattr(config, "_pywrap_tensor_float_32_execution", None)


def random_functions(names: Iterable[str]) -> Iterator[tuple[Any, str, str]]:
    """Yield ``(module, attribute, name)`` of every function by which Python code adds a random operation.

    ``tensorflow.python.ops.gen_*_ops`` (TF 2.4 to 2.21): the public functions (``tf.nn.dropout``, ``tf.random.*``,
    ``tf.nn.sampled_softmax_loss``, Keras layers) call these, and no public hook sees the operations that are added to
    a graph. ``tf.raw_ops`` has copies of them. Functions for seeds (``*_full_int``, key and counter) and for gradients
    are left out.
    """
    import tensorflow as tf

    for family in RANDOM_FAMILIES:
        module = module_of(f"ops.gen_{family}")
        yield from ((module, name, name) for name in names if hasattr(module, name))
    for name in names:
        raw = "".join(part.capitalize() for part in name.split("_"))
        if hasattr(tf.raw_ops, raw):
            yield tf.raw_ops, raw, name


def cast_functions(constants: bool = False) -> Iterator[tuple[Any, str]]:
    """Yield ``(module, name)`` of the function by which TensorFlow adds a cast, or converts Python and NumPy constants.

    ``tf.cast``, ``tf.saturate_cast``, both flavors of Keras and the gradients of casts call the first, operands like
    ``numpy.float32(x)`` the second (TF 2.4 to 2.21). No public hook sees operations that run eagerly.
    """
    path, name = ("framework.constant_op", "_constant_impl") if constants else ("ops.gen_math_ops", "cast")
    if (module := module_of(path, name)) is not None:
        yield module, name


RANDOM_FAMILIES = (
    "random_ops", "stateless_random_ops", "stateless_random_ops_v2", "stateful_random_ops", "candidate_sampling_ops",
    "image_ops", "random_index_shuffle_ops",
)  # fmt: skip


def seeds_of_keras() -> tuple[Any, str] | None:
    """Return ``(module, name)`` of the function by which random functions of Keras 3 turn ``seed=`` into a tensor.

    ``draw_seed`` in ``keras.src.backend.tensorflow.random`` (Keras 3.0 to 3.15): every random function of this module
    calls it and then draws. A tensor does not say which ``SeedGenerator`` it comes from.
    """
    module = sys.modules.get("keras.src.backend.tensorflow.random")
    return (module, "draw_seed") if module is not None and hasattr(module, "draw_seed") else None


def seed_generator(seed: Any) -> str:
    """Return the name of the ``SeedGenerator`` behind the argument ``seed=`` of Keras; empty for any other seed.

    For ``seed=None``, Keras draws from a global generator. A subclass may change the seeds, so it does not count.
    """
    module = sys.modules.get("keras.src.random.seed_generator")
    plain = getattr(module, "SeedGenerator", None)
    if seed is None:
        return "the global seed generator" if plain is not None else ""
    return str(seed.name) if plain is not None and type(seed) is plain else ""


def is_of_strategy(function: object) -> bool:
    """Return True if a replica function is TensorFlow's own; ``strategy.reduce(axis=…)`` runs one on its operands.

    Only the module of the function shows it (seen in TensorFlow 2.15 to 2.21).
    """
    function = getattr(function, "python_function", function)  # in eager mode it is a tf.function
    return str(getattr(function, "__module__", "")).startswith("tensorflow.python.distribute.")


def is_first_local_replica(context: Any) -> bool:
    """Return True if a replica context belongs to the first replica of its process.

    ``ReplicaContext._replica_id`` (TF 2.4 to 2.21) is the index in the process, as a number. The public
    ``replica_id_in_sync_group`` counts over all processes, and is a tensor under some strategies.
    """
    return getattr(context, "_replica_id", 0) in (0, None)


def loss_scale_of(optimizer: Any) -> list[Any]:
    """Return the loss scale of tf_keras' dynamic ``LossScaleOptimizer``, which its ``variables`` do not include.

    ``_loss_scale.current_loss_scale`` (tf_keras 2.15 to 2.21): the public ``loss_scale`` is a copy.
    """
    scale = getattr(getattr(optimizer, "_loss_scale", None), "current_loss_scale", None)
    return [scale] if hasattr(scale, "assign") else []


@contextmanager
def executed_functions(seen: Callable[[Any, list[Any]], None], with_parts: bool = True) -> Iterator[bool]:
    """Call ``seen(graph, partitions)`` after each execution of a traced function.

    Yield False if this is not possible.

    At the first execution, ``partitions`` is the list of the graphs that each device got, as ``GraphDef``. Later it
    is empty, because TensorFlow reports a graph only when it prepares the graph's first execution.

    ``AtomicFunction.call_flat`` (TF 2.21; without it there are no counters) calls all traced functions. There is no
    public list of a program's functions. ``context.enable_graph_collection`` and ``export_run_metadata`` (TF 2.0 to
    2.21) belong to ``tf.summary.trace_on``, which itself only writes the graphs to a file.

    :param with_parts: False if threads run functions at the same time, as those of a coordinator do. The export
        holds the interpreter's lock while it waits for the functions of all threads, and one of them may need the lock
        for a generator of its data (``TFE_ContextExportRunMetadata``, TF 2.16 to 2.21). Both would wait for ever.
    """
    context = module_of("eager.context", "enable_graph_collection", "disable_graph_collection", "export_run_metadata")
    owner = getattr(module_of("eager.polymorphic_function.atomic_function"), "AtomicFunction", None)
    original = getattr(owner, "call_flat", None)
    if context is None or original is None:
        yield False
        return
    known: set[Any] = set()

    def call_flat(self: Any, *args: Any) -> Any:
        if not context.executing_eagerly():
            return original(self, *args)
        is_new = with_parts and self.name not in known
        known.add(self.name)
        if is_new:
            context.export_run_metadata()  # discards what was collected for operations outside functions
        result = original(self, *args)
        functions = context.export_run_metadata().function_graphs if is_new else ()
        seen(self.graph, [graph for function in functions for graph in function.partition_graphs])
        return result

    if with_parts:
        context.enable_graph_collection()
    try:
        with Replacements().put(owner, "call_flat", call_flat):
            yield True
    finally:
        if with_parts:
            context.disable_graph_collection()


@contextmanager
def taken_batches(seen: Callable[[Any, bool], None]) -> Iterator[None]:
    """Call ``seen(graph, once)`` whenever a program takes a batch from a distributed iterator.

    ``graph`` is the outermost graph that is being traced, or ``None`` in eager mode. ``once`` is true if each execution
    of the graph takes the batch exactly once, that is, outside its loops, branches and inner functions.

    ``next`` calls ``DistributedIteratorBase.get_next`` (TF 2.4 to 2.21). An iterator does not publish its position,
    and a ``tf.function`` does not accept a wrapper of an iterator as an argument.
    """
    import tensorflow as tf

    owner = getattr(module_of("distribute.input_lib"), "DistributedIteratorBase", None)
    original = getattr(owner, "get_next", None)
    if original is None:
        yield
        return

    def get_next(self: Any, *args: Any, **kwargs: Any) -> Any:
        graph = outermost_graph()
        seen(graph, graph is None or graph is tf.compat.v1.get_default_graph())
        return original(self, *args, **kwargs)

    # AutoGraph would convert the replacement if a program calls get_next by name in a tf.function.
    with Replacements().put(owner, "get_next", tf.autograph.experimental.do_not_convert(get_next)):
        yield


@contextmanager
def given_elements(seen: Callable[[Any], None]) -> Iterator[None]:
    """Call ``seen(element)`` with each element that an iterator gives, in eager mode and while tracing.

    ``DistributedIteratorBase.get_next``, ``OwnedIterator._next_internal`` and ``_OptionalImpl.get_value`` (TF 2.4 to
    2.21): all loops over data end there. A ``tf.function`` does not accept a wrapper of an iterator as an argument.
    """
    import tensorflow as tf

    def reporting(original: Callable[..., Any]) -> Callable[..., Any]:
        def give(self: Any, *args: Any, **kwargs: Any) -> Any:
            element = original(self, *args, **kwargs)
            seen(element)
            return element

        return tf.autograph.experimental.do_not_convert(give)  # type: ignore[no-any-return]

    with Replacements() as replaced:
        for module, name, method in (
            ("distribute.input_lib", "DistributedIteratorBase", "get_next"),
            ("data.ops.iterator_ops", "OwnedIterator", "_next_internal"),
            ("data.ops.optional_ops", "_OptionalImpl", "get_value"),
        ):
            owner = getattr(module_of(module), name, None)
            if hasattr(owner, method):
                replaced.put(owner, method, reporting(getattr(owner, method)))
        yield


@contextmanager
def passed_tensors(seen: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call ``seen(inputs, arguments)`` before each call of a traced function, with tensors in the same order.

    ``AtomicFunction.call_flat`` (TF 2.15 to 2.21; without it nothing is reported): no public signature has this order.
    """
    owner = getattr(module_of("eager.polymorphic_function.atomic_function"), "AtomicFunction", None)
    original = getattr(owner, "call_flat", None)
    if original is None:
        yield
        return

    def call_flat(self: Any, *args: Any) -> Any:
        seen(getattr(self.graph, "inputs", ()), args)
        return original(self, *args)

    with Replacements().put(owner, "call_flat", call_flat):
        yield


def read_xspace(data: bytes) -> Any:
    """Parse a profile that ``tf.profiler`` wrote (``*.xplane.pb``).

    TensorFlow publishes no reader for its profiles, and the package that displays them needs TensorBoard. The
    module of the message is at its place in TF 2.21.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    return xplane_pb2.XSpace.FromString(data)


@contextmanager
def traced_functions(seen: Callable[[], None]) -> Iterator[None]:
    """Call ``seen()`` whenever an eagerly called function is traced, whether the program or a framework decorated it.

    All tracing begins in ``func_graph.func_graph_from_py_func`` (TF 2.0 to 2.21), also for branches and inner
    functions, which differ by having a graph around them. In the public interface, only the owner of a function
    can count its traces.
    """
    func_graph = module_of("framework.func_graph", "func_graph_from_py_func")
    if func_graph is None:
        yield
        return
    original = func_graph.func_graph_from_py_func

    def func_graph_from_py_func(*args: Any, **kwargs: Any) -> Any:
        if outermost_graph() is None:
            seen()
        return original(*args, **kwargs)

    with Replacements().put(func_graph, "func_graph_from_py_func", func_graph_from_py_func):
        yield
