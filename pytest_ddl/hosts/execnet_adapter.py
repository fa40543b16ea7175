"""Open a gateway of execnet over a command. All that is not in execnet's documented interface is used here.

``Group.makegateway`` is not enough. It writes the source of its gateway before it reads anything: a login shell that
prints much waits for a reader, and execnet for the shell. It does not show what was printed. And it has no public name
for the process that it has started.

Used without documentation, and tried with execnet 2.1.2: ``gateway_io.Popen2IOMaster``, the constructor of ``Gateway``,
``Group._register``, and the functions ``get_execmodel``, ``init_popen_io`` and ``serve`` of ``gateway_base``, whose
source runs on the host. ``tests/hosts/test_execnet_adapter.py`` fails if a version changes one of them.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
import subprocess
import threading
from collections.abc import Sequence

import execnet
from execnet import gateway_base, gateway_io

BOOTSTRAP_LINE = "import sys;exec(eval(sys.stdin.readline()))"
"""Program of the Python on a host. The first line of its stdin is the source of the gateway."""
END_WAIT = 0.5
"""Maximum seconds until a command has ended whose Python did not answer."""
_SHOWN = 200
"""Maximum number of bytes that are shown of what a command has printed."""


class NotStartedError(Exception):
    """No Python has answered behind the command."""

    def __init__(self, printed: str, status: int | None) -> None:
        """Describe what came instead.

        :param printed: beginning of what the command has printed on stdout.
        :param status: exit status of the command if it has ended by itself.
        """
        super().__init__(printed)
        self.printed, self.status = printed, status


def open_gateway(group: execnet.Group, name: str, command: Sequence[str]) -> execnet.Gateway:
    """Start a command that runs a Python with :data:`BOOTSTRAP_LINE` somewhere, and return the gateway to it.

    :raises NotStartedError: if this Python does not answer, or if something else is printed before it does.
    :raises OSError: if the command cannot be started.
    """
    io = gateway_io.Popen2IOMaster(list(command), group.execmodel)
    process: subprocess.Popen[bytes] = io.popen
    spec = execnet.XSpec(f"popen//id={name}")
    spec.execmodel = group.remote_execmodel.backend
    # Nobody prints this by chance, unlike the one character for which execnet waits.
    sign = secrets.token_hex(8)
    # In a thread, because a command that prints first does not read.
    sender = threading.Thread(target=_send, args=[io, _source(spec, sign)], name="ddl-source", daemon=True)
    sender.start()
    if (printed := _read_sign(process, sign.encode())) is not None:
        status = _end(process, sender)
        raise NotStartedError(printed.decode(errors="replace").strip(), status)
    gateway = execnet.Gateway(io, spec)
    group._register(gateway)
    return gateway


def _source(spec: execnet.XSpec, sign: str) -> bytes:
    """Return the line that makes the Python on the host the other end of a gateway."""
    lines = [
        inspect.getsource(gateway_base),
        f"execmodel = get_execmodel({spec.execmodel!r})",
        "io = init_popen_io(execmodel)",
        f"io.write({sign.encode()!r})",
        f"serve(io, id='{spec.id}-worker')",
    ]
    return (repr("\n".join(lines)) + "\n").encode()


def _send(io: gateway_io.Popen2IOMaster, source: bytes) -> None:
    # If the command has ended, its status says more.
    with contextlib.suppress(OSError, ValueError):
        io.write(source)


def _read_sign(process: subprocess.Popen[bytes], sign: bytes) -> bytes | None:
    """Read from the command until the sign has come. Return what has come instead, or ``None``."""
    assert process.stdout is not None
    # Not from the buffered file: that would take bytes of the gateway's first message.
    out, output = process.stdout.fileno(), b""
    while sign.startswith(output) and output != sign:
        part = os.read(out, len(sign) - len(output))
        if not part:
            return output
        output += part
    if output == sign:
        return None
    os.set_blocking(out, False)
    with contextlib.suppress(BlockingIOError):
        output += os.read(out, _SHOWN)
    return output[:_SHOWN]


def _end(process: subprocess.Popen[bytes], sender: threading.Thread) -> int | None:
    """End a command. Return its exit status if it had ended by itself."""
    try:
        return process.wait(END_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
    finally:
        sender.join(END_WAIT)
        # A child of the command may still hold the pipe. Then the thread waits, and has the file.
        for file in (process.stdout, None if sender.is_alive() else process.stdin):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()
