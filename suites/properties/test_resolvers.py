"""Check what cluster resolvers say about a cluster, with fake services, and servers that share their state."""

from __future__ import annotations

import json
import socket
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4"]}
CONFIG = {"cluster": CLUSTER, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"}
alone = pytest.mark.ddl(strategies="one_device")


def resolvers():
    import tensorflow as tf

    return tf.distribute.cluster_resolver


@pytest.mark.ddl_item("resolver.TFConfig", shows="behavior")
def test_tf_config(monkeypatch):
    """The environment gives everything, and arguments take precedence."""
    monkeypatch.setenv("TF_CONFIG", json.dumps(CONFIG))
    resolver = resolvers().TFConfigClusterResolver()
    assert resolver.cluster_spec().as_dict() == CLUSTER
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.master() == "grpc://c:3"
    assert resolver.master("ps", 0) == "grpc://d:4"
    assert resolver.master("worker", 0, rpc_layer="other") == "other://b:2"
    assert resolver.num_accelerators() == {}
    given = resolvers().TFConfigClusterResolver(task_type="ps", task_id=0, rpc_layer="x")
    assert (given.task_type, given.task_id, given.rpc_layer, given.master()) == ("ps", 0, "x", "x://d:4")


@pytest.mark.ddl_item("resolver.TFConfig", shows="behavior")
@pytest.mark.parametrize("text", [None, "{}"], ids=["missing", "empty"])
def test_no_tf_config(monkeypatch, text):
    """The master is this process if there is no cluster."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    resolver = resolvers().TFConfigClusterResolver()
    assert resolver.cluster_spec().as_dict() == {}
    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")


def simple(cluster, **given):
    import tensorflow as tf

    return resolvers().SimpleClusterResolver(tf.train.ClusterSpec(cluster), **given)


@pytest.mark.ddl_item("resolver.Simple", shows="behavior")
def test_simple():
    given = {"master": "m:9", "task_type": "worker", "task_id": 0, "num_accelerators": {"GPU": 4}, "rpc_layer": "grpc"}
    resolver = simple(CLUSTER, **given)
    assert resolver.cluster_spec().as_dict() == CLUSTER
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 0, "")
    assert resolver.num_accelerators() == {"GPU": 4}
    assert resolver.master() == "grpc://m:9"
    assert resolver.master("worker", 1) == "grpc://c:3"
    resolver.task_id = 1
    assert resolver.task_id == 1
    with pytest.raises(TypeError, match="ClusterSpec"):
        resolvers().SimpleClusterResolver(CLUSTER)


@pytest.mark.ddl_item("resolver.Union", shows="behavior")
def test_union():
    """Lists of one job are concatenated. Other properties are those of the first resolver."""
    first = simple({"worker": ["a:1"]}, task_type="worker", task_id=0, num_accelerators={"GPU": 2}, rpc_layer="x")
    second = simple({"worker": ["b:2"], "ps": ["c:3"]}, task_type="ps", task_id=0)
    union = resolvers().UnionResolver(first, second)
    assert union.cluster_spec().as_dict() == {"worker": ["a:1", "b:2"], "ps": ["c:3"]}
    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 0, "x")
    assert union.num_accelerators() == {"GPU": 2}
    assert union.master("worker", 1, rpc_layer="y") == "y://b:2"
    changed = resolvers().UnionResolver(first, task_type="evaluator", task_id=3, rpc_layer="z")
    assert (changed.task_type, changed.task_id, changed.rpc_layer) == ("evaluator", 3, "z")


@pytest.mark.ddl_item("resolver.Union", shows="behavior")
def test_union_of_numbered_tasks():
    """Tasks with numbers stay under their numbers, and a number may occur once."""
    first = simple({"worker": {0: "a:1", 2: "c:3"}})
    union = resolvers().UnionResolver(first, simple({"worker": {1: "b:2"}}))
    assert union.cluster_spec().as_dict() == {"worker": ["a:1", "b:2", "c:3"]}
    with pytest.raises(KeyError, match="Duplicate keys"):
        resolvers().UnionResolver(first, simple({"worker": {2: "d:4"}})).cluster_spec()
    with pytest.raises(ValueError, match="At least one"):
        resolvers().UnionResolver()


@pytest.mark.ddl_item("resolver.Union", shows="behavior")
@alone
def test_union_with_task_zero(ddl_strategy):
    """The argument task_id takes precedence over the first resolver, whatever the number."""
    union = resolvers().UnionResolver(simple(CLUSTER, task_type="worker", task_id=1), task_id=0)
    assert union.task_id == 0


def slurm(monkeypatch, nodes, tasks, rank, **given):
    """Return a resolver in the environment that Slurm gives to a task."""
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", str(sum(given.get("jobs", {"worker": 0}).values()) or 5))
    monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    return resolvers().SlurmClusterResolver(**given)


@pytest.mark.ddl_item("resolver.Slurm", shows="behavior")
@pytest.mark.parametrize("rank", range(5))
def test_slurm(monkeypatch, rank):
    """Tasks of a node have consecutive ports and devices; jobs take the tasks in the order of their names."""
    import os

    jobs = {"worker": 3, "ps": 2}
    resolver = slurm(monkeypatch, "n[1-2],m5", "2(x2),1", rank, jobs=jobs, port_base=100, rpc_layer="grpc")
    addresses = ["m5:100", "n1:100", "n1:101", "n2:100", "n2:101"]
    assert resolver.cluster_spec().as_dict() == {"ps": addresses[:2], "worker": addresses[2:]}
    task = ("ps", rank) if rank < 2 else ("worker", rank - 2)
    assert resolver.get_task_info() == task
    assert resolver.num_accelerators() == {"GPU": 2}
    assert resolver.master() == f"grpc://{addresses[rank]}"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ["0,1", "0,1", "2,3", "0,1", "2,3"][rank]


@pytest.mark.ddl_item("resolver.Slurm", shows="behavior")
def test_slurm_lists_of_nodes():
    from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import (
        expand_hostlist,
        expand_tasks_per_node,
    )

    assert expand_hostlist("n[08-10],m5,o[3,6-7]") == ["n08", "n09", "n10", "m5", "o3", "o6", "o7"]
    assert expand_tasks_per_node("3(x2),2,1") == [3, 3, 2, 1]
    with pytest.raises(ValueError, match="Invalid hostlist"):
        expand_hostlist("n[1-2")
    with pytest.raises(ValueError, match="Invalid tasks-per-node"):
        expand_tasks_per_node("x")


@pytest.mark.ddl_item("resolver.Slurm", shows="behavior")
def test_slurm_refuses(monkeypatch):
    with pytest.raises(RuntimeError, match="Requested 4 tasks but only 5"):
        slurm(monkeypatch, "n[1-2],m5", "2(x2),1", 0, jobs={"worker": 4})
    with pytest.raises(RuntimeError, match="more GPUs per node than available"):
        slurm(monkeypatch, "n[1-2],m5", "2(x2),1", 0, gpus_per_task=3)
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(RuntimeError, match="SLURM_PROCID not found"):
        resolvers().SlurmClusterResolver()


@pytest.mark.ddl_item("resolver.Slurm", shows="behavior")
@alone
def test_slurm_without_gpus(ddl_strategy, monkeypatch):
    """A cluster of CPUs has addresses too."""
    resolver = slurm(monkeypatch, "n[1-2],m5", "2(x2),1", 0, gpus_per_node=0)
    assert len(resolver.cluster_spec().as_dict()["worker"]) == 5


@pytest.mark.ddl_item("resolver.Slurm", shows="behavior")
@alone
def test_slurm_tasks_are_on_their_nodes(ddl_strategy, monkeypatch):
    """Slurm gives rank 0 to the first node of its list. The address of rank 0 must be on that node."""
    resolver = slurm(monkeypatch, "n[9-10]", "1(x2)", 0, jobs={"worker": 2}, rpc_layer=None)
    assert resolver.cluster_spec().as_dict() == {"worker": ["n9:8888", "n10:8888"]}


def pod(name, address, phase="Running"):
    return SimpleNamespace(metadata=SimpleNamespace(name=name), status=SimpleNamespace(phase=phase, host_ip=address))


class Pods:
    """Fake client of Kubernetes."""

    def __init__(self, by_label):
        self.by_label = by_label

    def list_pod_for_all_namespaces(self, label_selector):
        return SimpleNamespace(items=self.by_label[label_selector])


PODS = {"role=w": [pod("w-1", "10.0.0.2"), pod("w-0", "10.0.0.1")], "role=p": [pod("p-0", "10.0.0.3")]}


@pytest.mark.ddl_item("resolver.Kubernetes", shows="behavior")
def test_kubernetes():
    """Pods are in the order of their names. The task is what the user sets."""
    labels = {"worker": ["role=w"], "ps": ["role=p"]}
    resolver = resolvers().KubernetesClusterResolver(labels, tf_server_port=7, override_client=Pods(PODS))
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.1:7", "10.0.0.2:7"], "ps": ["10.0.0.3:7"]}
    assert resolver.master() == ""
    resolver.task_type, resolver.task_id = "worker", 1
    assert resolver.master() == "grpc://10.0.0.2:7"
    assert resolver.master("ps", 0, rpc_layer="x") == "x://10.0.0.3:7"
    waiting = Pods({"job-name=tensorflow": [pod("late", "10.0.0.4", "Pending")]})
    with pytest.raises(RuntimeError, match='Pod "late" is not running; phase: "Pending"'):
        resolvers().KubernetesClusterResolver(override_client=waiting).cluster_spec()


class ConfigError(Exception):
    """Error that the client of Kubernetes raises if there is no configuration of the wanted kind."""


def install(monkeypatch, within):
    """Install a fake package ``kubernetes``, in a pod or outside, and return the names of the functions called."""
    calls = []

    def load(name, works):
        def function():
            calls.append(name)
            if not works:
                raise ConfigError(name)

        return function

    package, config, client = (ModuleType(name) for name in ("kubernetes", "kubernetes.config", "kubernetes.client"))
    config.load_incluster_config = load("incluster", within)
    config.load_kube_config = load("kube", not within)
    client.CoreV1Api = lambda: Pods({"job-name=tensorflow": PODS["role=w"]})
    package.config, package.client = config, client
    for module in (package, config, client):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


@pytest.mark.ddl_item("resolver.Kubernetes", shows="behavior", tensorflow=">=2.21")
def test_kubernetes_from_outside(monkeypatch):
    from tensorflow.python.distribute.cluster_resolver.kubernetes_cluster_resolver import ExecutableLocation

    calls = install(monkeypatch, within=False)
    resolver = resolvers().KubernetesClusterResolver(executable_location=ExecutableLocation.OFF_CLUSTER)
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}
    assert set(calls) == {"kube"}
    with pytest.raises(ConfigError, match="incluster"):
        resolvers().KubernetesClusterResolver()


@pytest.mark.ddl_item("resolver.Kubernetes", shows="behavior")
@alone
def test_kubernetes_from_a_pod(ddl_strategy, monkeypatch):
    """A pod has no configuration file of a user. The default location is a pod."""
    calls = install(monkeypatch, within=True)
    resolver = resolvers().KubernetesClusterResolver()
    assert calls == ["incluster"]
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}


class Request:
    """Fake request of the interface of Google."""

    def __init__(self, answer):
        self.execute = lambda: answer


class Compute:
    """Fake service of Google Compute Engine with two pages of instances."""

    addresses: ClassVar[dict[str, str]] = {"one": "10.0.0.2", "two": "10.0.0.1", "three": "10.0.0.3"}

    def instanceGroups(self):  # noqa: N802
        return self

    def instances(self):
        return self

    def listInstances(self, **given):  # noqa: N802
        assert given == {
            "project": "p",
            "zone": "z",
            "instanceGroups": "g",
            "body": {"instanceState": "RUNNING"},
            "orderBy": "name",
        }
        return Request({"items": [{"instance": "https://x/one"}, {"instance": "https://x/two"}]})

    def listInstances_next(self, previous_request, previous_response):  # noqa: N802
        if len(previous_response["items"]) == 1:
            return None
        return Request({"items": [{"instance": "https://x/three"}]})

    def get(self, project, zone, instance):
        return Request({"networkInterfaces": [{"networkIP": self.addresses[instance]}]})


@pytest.mark.ddl_item("resolver.GCE", shows="behavior")
def test_gce():
    """All pages count, and addresses are sorted, so that all tasks number them alike."""
    resolver = resolvers().GCEClusterResolver("p", "z", "g", 7, task_id=2, credentials=None, service=Compute())
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 2, "grpc")
    assert resolver.master() == "grpc://10.0.0.3:7"
    assert resolver.master("worker", 0, rpc_layer="x") == "x://10.0.0.1:7"
    with pytest.raises(RuntimeError, match="cannot reset the task_type"):
        resolver.task_type = "ps"


def free_address():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return f"localhost:{found.getsockname()[1]}"


servers = pytest.mark.ddl(strategies="one_device", isolation="fresh", timeout=60)


@pytest.mark.ddl_item("resolver.server", shows="behavior")
@servers
def test_a_server(ddl_strategy):
    """A local server has an address, runs operations, and knows its cluster. A server may start later."""
    import tensorflow as tf

    server = tf.distribute.Server.create_local_server()
    assert server.target.startswith("grpc://localhost:")
    with tf.Graph().as_default():
        six = tf.constant(2) * 3
        with tf.compat.v1.Session(server.target) as session:
            assert session.run(six) == 6
    later = tf.distribute.Server({"worker": [free_address()]}, job_name="worker", task_index=0, start=False)
    assert later.server_def.job_name == "worker"
    later.start()
    assert later.target.startswith("grpc://localhost:")
    with pytest.raises(tf.errors.OpError, match='Job "ps" was not defined'):
        tf.distribute.Server({"worker": [free_address()]}, job_name="ps", task_index=0)


@pytest.mark.ddl_item("resolver.server_share", "resolver.server")
@servers
def test_servers_share_the_variables_of_their_cluster(ddl_strategy):
    """A client of one server reads the value that a client of the other one assigned."""
    import tensorflow as tf

    cluster = {"worker": [free_address(), free_address()]}
    first, second = (tf.distribute.Server(cluster, job_name="worker", task_index=index) for index in (0, 1))
    with tf.Graph().as_default():
        variables = []
        for index in (0, 1):
            with tf.device(f"/job:worker/task:{index}"):
                variables.append(tf.compat.v1.Variable([10.0 * index + 1], use_resource=True))
        total = variables[0] * 2 + variables[1] * 3
        change = variables[0].assign_add([4.0])
        with tf.compat.v1.Session(first.target) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(total).tolist() == [1 * 2 + 11 * 3]
        with tf.compat.v1.Session(second.target) as session:
            assert session.run(total).tolist() == [1 * 2 + 11 * 3]
            session.run(change)
        with tf.compat.v1.Session(first.target) as session:
            assert session.run(total).tolist() == [5 * 2 + 11 * 3]


@pytest.mark.ddl_item("resolver.TPU", shows="behavior")
def test_tpu():
    """An address is the cluster of one task, several are its tasks in order, and no address is refused."""
    import tensorflow as tf

    make = tf.distribute.cluster_resolver.TPUClusterResolver
    addresses = ["10.0.0.1:8470", "10.0.0.2:8471", "10.0.0.3:8470"]
    for number in (1, 3):
        resolver = make(tpu=",".join(f"grpc://{address}" for address in addresses[:number]))
        assert resolver.cluster_spec().as_dict() == {"worker": addresses[:number]}
        assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 0, "")
        assert resolver.master() == resolver.get_master() == f"grpc://{addresses[0]}"
    for index, address in enumerate(addresses):
        assert resolver.master("worker", index) == f"grpc://{address}"
    local = make(tpu="local")
    assert (local.cluster_spec().as_dict(), local.master()) == ({}, "")
    with pytest.raises(ValueError, match="TPU Name"):
        make(tpu="")
