"""An engine's life, with a short script in the place of its interpreter: what is started, waited for and ended."""

from __future__ import annotations

import signal
import stat
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from tools.engines import install, places
from tools.engines.launch import EngineError, running

SERVER = """
import http.server, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
child = subprocess.Popen(["sleep", "600"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(" ".join(sys.argv).encode())
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that stands where the environment of vLLM has its interpreter."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = places.python("vllm")
    path.parent.mkdir(parents=True)
    (places.environment("vllm") / "install.json").write_bytes(
        msgspec.json.encode(
            places.Installation(
                kind="vllm", version="0", lock_sha256=places.sha256(places.lock("vllm")), seconds=1.5, size_mb=7
            )
        )
    )
    return path


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_an_engine_is_started_with_its_flags_and_ended_with_its_children(interpreter: Path, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    places.model().mkdir()
    write_script(interpreter, f'#!/bin/sh\nexec "{sys.executable}" "{server}" "$@"\n')
    with running("vllm", "--max-num-seqs", "4", otlp_url="http://127.0.0.1:1/v1/traces") as engine:
        command = httpx.get(engine.url).text
        children = engine.children()
        assert list(children.values()) == ["sleep 600"]
    assert f"--model {places.model()} " in command
    assert f"--port {engine.port} " in command
    assert command.endswith("--max-num-seqs 4 --otlp-traces-endpoint http://127.0.0.1:1/v1/traces")
    assert engine.wait(0) == -signal.SIGKILL
    for pid in children:
        assert not _runs(pid)


def _runs(pid: int) -> bool:
    """A killed process may stay a zombie until its new parent looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_engine_that_ends_at_once_is_quoted(interpreter: Path) -> None:
    places.model().mkdir()
    write_script(interpreter, "#!/bin/sh\necho no such model\nexit 3\n")
    with pytest.raises(EngineError, match="ended with status 3:\nno such model"), running("vllm"):
        pass


def test_an_engine_that_never_answers_is_given_up(interpreter: Path) -> None:
    places.model().mkdir()
    write_script(interpreter, "#!/bin/sh\necho loading\nexec sleep 600\n")
    with pytest.raises(EngineError, match="not up after 0 s:\nloading"), running("vllm", ready_s=0.4):
        pass


def test_an_engine_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with (
        pytest.raises(EngineError, match=r"sglang is not installed: python -m tools\.engines sglang"),
        running("sglang"),
    ):
        pass


def test_what_is_installed_as_its_lock_asks_stays(interpreter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install.install("vllm").size_mb == 7
    assert capsys.readouterr().out == "vllm 0: there, 7 MB (took 2 s)\n"


def test_an_environment_of_another_lock_does_not_count(interpreter: Path) -> None:
    mark = places.environment("vllm") / "install.json"
    found = msgspec.json.decode(mark.read_bytes(), type=places.Installation)
    mark.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, lock_sha256="another")))
    assert not places.installed("vllm")


def test_a_model_that_broke_off_is_made_again(interpreter: Path) -> None:
    write_script(interpreter, '#!/bin/sh\nmkdir -p "$2"\necho made >"$2/model"\n')
    unfinished = places.model().with_suffix(".unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "torn").touch()
    assert [path.name for path in install.make_model("vllm").iterdir()] == ["model"]
    write_script(interpreter, "#!/bin/sh\nexit 1\n")
    assert [path.name for path in install.make_model("vllm").iterdir()] == ["model"], "made once"


def test_an_unknown_engine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["vllm", "trt"]) == 2
    assert capsys.readouterr().err == "no such engine: trt; there are vllm, sglang\n"
