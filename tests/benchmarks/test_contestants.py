"""The life of a contestant, with a small server in its place."""

import re
import socket
import sys

import pytest

from benchmarks import contestants, cpu, wire
from benchmarks.contestants import CONTESTANTS, Contestant, ContestantError

SERVE = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = b'{"choices": "' + open(sys.argv[2], "rb").read() + os.environ["EXTRA"].encode() + b'"}'
        known = self.headers["authorization"] == "Bearer " + sys.argv[3]
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
SERVER = Contestant(
    name="server",
    version=(sys.executable, "--version"),
    install="",
    command=(sys.executable, "-c", SERVE, "@port@", "@dir@/settings", "@key@"),
    files={"settings": "engine @engine_port@"},
    environment={"EXTRA": " and more"},
)
MARK = re.compile(r"@([a-z_]+)@")


def test_a_contestant_runs_until_the_end_of_the_block_with_its_files_key_and_environment() -> None:
    with contestants.running(SERVER, 4711) as target:
        assert target.pid is not None
        assert cpu.rss_bytes(target.pid) > 1_000_000
        with socket.create_connection(("127.0.0.1", target.port)) as client:
            client.sendall(wire.request(target.port, wire.request_body(wire.SMALL)))
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.0 200")
    assert answer.endswith(b'{"choices": "engine 4711 and more"}')
    assert cpu.read_tree(target.pid) == []


@pytest.mark.parametrize("contestant", CONTESTANTS.values(), ids=CONTESTANTS)
def test_everything_a_row_asks_for_is_filled_in(contestant: Contestant) -> None:
    text = " ".join([*contestant.command, *contestant.files.values()])
    assert set(MARK.findall(text)) <= {"port", "metrics_port", "engine_port", "key", "dir"}
    assert not contestant.command or {"port", "engine_port"} <= set(MARK.findall(text))
    for name in re.findall(r"@dir@/([a-z]+\.(?:yaml|conf))", " ".join(contestant.command)):
        assert name in contestant.files


def test_the_version_is_what_its_command_prints() -> None:
    assert contestants.version_of(SERVER).startswith("Python 3")


def test_a_version_command_that_fails_means_not_installed() -> None:
    absent = Contestant(name="absent", version=(sys.executable, "-c", "raise SystemExit(1)"), install="make it")
    with pytest.raises(ContestantError, match="absent is not installed; make it"):
        contestants.version_of(absent)


def test_one_that_ends_at_once_is_reported_with_its_log() -> None:
    broken = Contestant(
        name="broken", version=(), install="", command=(sys.executable, "-c", "raise SystemExit('no such flag')")
    )
    with (
        pytest.raises(ContestantError, match=r"broken did not start(.|\n)*no such flag"),
        contestants.running(broken, 1),
    ):
        pass
