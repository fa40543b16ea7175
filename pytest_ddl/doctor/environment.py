"""Find environment variables that are set and change TensorFlow silently."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from pytest_ddl.doctor.examination import DoctorFinding, ok, problem, warning
from pytest_ddl.installing import installed


@dataclass(frozen=True)
class Variable:
    """Environment variable that TensorFlow, Keras or CUDA reads when it is imported or starts."""

    name: str
    effect: str
    """Text after its name and value that says what it does."""
    wrong: Callable[[str], DoctorFinding | None] = lambda _value: None
    """Returns a warning or a problem for some values. Other values are only mentioned."""


def _tf_config(value: str) -> DoctorFinding:
    fix = "unset TF_CONFIG"
    try:
        cluster = ", ".join(f"{len(hosts)} {name}" for name, hosts in json.loads(value)["cluster"].items())
    except (ValueError, KeyError, TypeError, AttributeError):
        return warning("TF_CONFIG is set, and describes no cluster, so programs outside of pytest-ddl may fail", fix)
    text = f"TF_CONFIG is set ({cluster}): ranks of pytest-ddl get their own, other programs wait for these tasks"
    return warning(text, fix)


def _no_gpu(value: str) -> DoctorFinding | None:
    if value.strip() not in ("", "-1"):
        return None
    return warning(f"CUDA_VISIBLE_DEVICES={value!r} hides all GPUs", "unset CUDA_VISIBLE_DEVICES, or name GPUs in it")


def _legacy_keras(value: str) -> DoctorFinding | None:
    if value.strip().lower() not in ("1", "true") or installed("tf_keras"):
        return None
    text = f"TF_USE_LEGACY_KERAS={value} makes tf.keras the package tf_keras, which is not installed"
    return problem(text, "unset TF_USE_LEGACY_KERAS, or pip install tf_keras of TensorFlow's version")


def _backend(value: str) -> DoctorFinding | None:
    if value in ("", "tensorflow"):
        return None
    return problem(f"KERAS_BACKEND={value}, and tf.distribute needs the backend tensorflow", "unset KERAS_BACKEND")


def _number(name: str) -> Callable[[str], DoctorFinding | None]:
    def wrong(value: str) -> DoctorFinding | None:
        if value.isdecimal() or value == "":
            return None
        return warning(f"{name}={value!r} is not a number", f"unset {name}")

    return wrong


VARIABLES = (
    Variable("TF_CONFIG", "describes a cluster", _tf_config),
    Variable("CUDA_VISIBLE_DEVICES", "limits the GPUs", _no_gpu),
    Variable("TF_USE_LEGACY_KERAS", "selects Keras 2 (tf_keras) or 3", _legacy_keras),
    Variable("KERAS_BACKEND", "selects the backend of Keras", _backend),
    Variable("XLA_FLAGS", "changes how XLA compiles"),
    Variable("TF_XLA_FLAGS", "may compile every function with XLA"),
    Variable("TF_ENABLE_ONEDNN_OPTS", "changes kernels, and so the rounding"),
    Variable("TF_DETERMINISTIC_OPS", "makes operations deterministic and slower"),
    Variable("TF_CUDNN_DETERMINISTIC", "makes cuDNN deterministic and slower"),
    Variable("NVIDIA_TF32_OVERRIDE", "changes the precision on GPUs"),
    Variable("TF_FORCE_GPU_ALLOW_GROWTH", "changes how much memory of a GPU is taken"),
    Variable("TF_GPU_ALLOCATOR", "changes how memory of a GPU is taken"),
    Variable("TF_NUM_INTEROP_THREADS", "limits threads", _number("TF_NUM_INTEROP_THREADS")),
    Variable("TF_NUM_INTRAOP_THREADS", "limits threads", _number("TF_NUM_INTRAOP_THREADS")),
    Variable("GRPC_DNS_RESOLVER", "changes how TensorFlow's servers find names"),
)
"""Variables to look for. To add one, add an entry here."""


def variables() -> list[DoctorFinding]:
    """Judge each variable that is set. Those that are only mentioned are one finding."""
    wrong, mentioned = [], []
    for variable in VARIABLES:
        value = os.environ.get(variable.name)
        if value is None:
            continue
        finding = variable.wrong(value)
        if finding is not None:
            wrong.append(finding)
        elif value:
            mentioned.append(f"{variable.name}={value} ({variable.effect})")
    if mentioned:
        return [*wrong, ok(" ".join(f"set: {', '.join(mentioned)}".split()))]
    return wrong or [ok("no variable changes TensorFlow silently")]
