"""The gateway as a whole process: its address, its limits, its one line on stdout, and its end."""

from __future__ import annotations

import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.app import Gateway, bind
from gateway.errors import ConfigError
from protocol.records import GatewayRecord, read_lines
from tests.gateway.conftest import CHAT, make_config

ROOT = Path(__file__).parents[2]
GONE = "http://127.0.0.1:1"


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="needs an IPv6 loopback address")


def test_the_listening_socket_has_the_address_that_was_asked_for(tmp_path: Path) -> None:
    with bind(make_config([GONE], tmp_path / "r")) as listener:
        host, port = listener.getsockname()
        assert (host, listener.family) == ("127.0.0.1", socket.AF_INET)
        with socket.create_connection((host, port)):
            pass


@needs_ipv6
def test_an_ipv6_address_gets_an_ipv6_socket(tmp_path: Path) -> None:
    with bind(make_config([GONE], tmp_path / "r", listen={"host": "::1", "port": 0})) as listener:
        assert (listener.getsockname()[0], listener.family) == ("::1", socket.AF_INET6)


def test_an_address_that_cannot_be_had_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^listen: cannot listen on 127\.0\.0\.1:{port}: Address already in"):
            bind(make_config([GONE], tmp_path / "r", listen={"port": port}))
    with pytest.raises(ConfigError, match=r"^listen: cannot listen on 192\.0\.2\.1:0: Cannot assign"):
        bind(make_config([GONE], tmp_path / "r", listen={"host": "192.0.2.1", "port": 0}))
    with pytest.raises(ConfigError, match=r"^listen: cannot listen on no-such-host\.invalid:0: "):
        bind(make_config([GONE], tmp_path / "r", listen={"host": "no-such-host.invalid", "port": 0}))


def test_a_gateway_that_is_closed_has_let_go_of_its_files(tmp_path: Path) -> None:
    gateway = Gateway(make_config([GONE], tmp_path / "r"))
    path = tmp_path / "r"
    assert path.exists()
    gateway.close()
    open_files = {link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert path not in open_files


class Served:
    """A gateway that is a process, as `weir serve` starts it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.greeting = process.stdout.readline()
        self.url = self.greeting.rpartition(" ")[2].strip()

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Status, the rest of stdout, and stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=10)
        return self.process.returncode, out, err


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(listen={...})` with these sections of the configuration; `files` is the soft limit it starts with."""

    @contextmanager
    def started(files: int | None = None, **sections: object) -> Iterator[Served]:
        config = {
            "listen": {"port": 0},
            "pools": {"p": {"engine": "vllm", "endpoints": [{"url": GONE}]}},
            "routes": [{"model": "m", "split": {"p": 1}}],
            "records": {"path": str(tmp_path / "records.jsonl")},
            **sections,
        }
        path = tmp_path / "weir.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        limit = ["prlimit", f"--nofile={files}:"] if files else []
        command = [*limit, sys.executable, "-W", "error", "-m", "weir", "serve", "--config", str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield Served(process)
            finally:
                if process.poll() is None:
                    process.kill()

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(started(**options))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_served_gateway_says_where_keeps_its_records_and_ends_with_0(
    serve: Serve, tmp_path: Path, number: signal.Signals
) -> None:
    gateway = serve()
    assert re.fullmatch(r"weir listening on http://127\.0\.0\.1:\d+\n", gateway.greeting)
    with httpx.Client(base_url=gateway.url, trust_env=False) as client:
        assert client.get("/healthz").status_code == 200
        status = client.post("/v1/chat/completions", json=CHAT).status_code
    returned, out, err = gateway.end(number)
    assert (returned, out) == (0, "")
    assert "Traceback" not in err
    [record] = read_lines(tmp_path / "records.jsonl", GatewayRecord)
    assert (record.status, record.outcome) == (status, "error")


@needs_ipv6
def test_an_ipv6_address_is_shown_as_a_url(serve: Serve) -> None:
    gateway = serve(listen={"host": "::1", "port": 0})
    assert re.fullmatch(r"weir listening on http://\[::1\]:\d+\n", gateway.greeting)
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False).status_code == 200
    assert gateway.end(signal.SIGTERM)[0] == 0


def test_the_limit_on_open_files_is_raised_as_far_as_it_goes(serve: Serve) -> None:
    gateway = serve(files=256)
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False).status_code == 200
    limits = Path(f"/proc/{gateway.process.pid}/limits").read_text()
    [(soft, hard)] = re.findall(r"^Max open files +(\d+) +(\d+)", limits, re.MULTILINE)
    assert soft == hard == str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    returned, _, err = gateway.end(signal.SIGTERM)
    assert returned == 0
    assert f"file descriptor limit raised from 256 to {hard}" in err
