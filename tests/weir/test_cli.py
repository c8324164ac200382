"""The command line: instant help, and one line with exit status 2 for whatever was wrong with the input."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config_file import load
from weir.cli import VERBS, main

ROOT = Path(__file__).parents[2]
CONFIG = """\
pools:
  a:
    engine: vllm
    endpoints:
      - url: http://127.0.0.1:8000
routes:
  - model: m
    split: {a: 1}
listen: {port: 0}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "weir.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def weir(*arguments: str | Path, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, *python, "-m", "weir", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def test_help_takes_less_than_150_ms_of_cpu() -> None:
    spent_s = []
    for _ in range(3):
        before_s = cpu_s()
        shown = weir("--help")
        spent_s.append(cpu_s() - before_s)
    assert (shown.returncode, shown.stderr) == (0, "")
    for verb, (summary, _, _) in VERBS.items():
        assert re.search(rf"^    {verb}\s", shown.stdout, re.MULTILINE)
        assert summary.split()[0] in shown.stdout
    assert min(spent_s) < 0.150


def test_help_imports_nothing_of_ours_but_the_command_line_and_nothing_heavy() -> None:
    listing = weir("--help", python=("-X", "importtime")).stderr
    imported = {line.rpartition("|")[2].strip() for line in listing.splitlines() if "|" in line}
    packages = {name.partition(".")[0] for name in imported}
    assert {"argparse", "weir"} <= packages
    heavy = {"asyncio", "fastapi", "httpx", "msgspec", "numpy", "pydantic", "uvicorn", "uvloop", "yaml"}
    assert not packages & (heavy | {"gateway", "loadgen", "simulator", "protocol"})
    assert {name for name in imported if name.startswith("weir.")} <= {"weir.cli", "weir.__main__"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_its_arguments(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: weir {verb} ")
    assert VERBS[verb][0].split()[0] in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: VERB"),
        (["bogus"], "invalid choice: 'bogus'"),
        (["check"], "required: FILE"),
        (["serve"], "required: --config"),
        (["serve", "--config", "x", "--log-level", "loud"], "invalid choice: 'loud'"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what_is_missing(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_arguments_come_from_the_command_line_by_default(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["weir", "check", str(config)])
    assert main() == 0
    assert "listen.port" in capsys.readouterr().out


def test_check_prints_every_setting_with_its_value_and_origin_in_columns(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(config)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    rows = load(config).effective()
    assert [line.split() for line in lines] == [
        [key, "-" if value is None else str(value), origin] for key, value, origin in rows
    ]
    assert ["listen.port", "0", f"{config}:9"] in [line.split() for line in lines]
    assert ["listen.host", "127.0.0.1", "default"] in [line.split() for line in lines]
    assert len({line.index(row[2]) for line, row in zip(lines, rows, strict=True)}) == 1


@pytest.mark.parametrize("verb", [["check"], ["serve", "--config"]])
def test_each_problem_of_a_configuration_is_one_line_with_place_field_value_and_remedy(
    verb: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = CONFIG.replace("vllm", "vlm").replace("8000", "8000/v1").replace("port: 0", "port: '80', prot: 1")
    config.write_text(bad, encoding="utf-8")
    assert main([*verb, str(config)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    url = "http://127.0.0.1:8000/v1"
    assert err.splitlines() == [
        f"{config}:3: pools.a.engine: 'vlm': must be 'vllm', 'sglang' or 'openai'",
        f"{config}:5: pools.a.endpoints[0].url: '{url}': the gateway adds /v1 itself; remove it from the URL",
        f"{config}:9: listen.port: '80': must be a whole number, without unit or quotes",
        f"{config}:9: listen.prot: unknown key; known here: host, port, keep_alive_s",
    ]


@pytest.mark.parametrize("verb", [["check"], ["serve", "--config"]])
def test_a_file_that_is_not_there_is_one_line(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb, str(tmp_path / "no.yaml")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'no.yaml'}: cannot be read: No such file or directory\n"


@pytest.fixture
def _own_root_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`serve` sets up logging for its process; here that is the tests' own."""
    levels = {name: logging.getLogger(name).level for name in ("root", "httpx", "uvicorn")}
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("_own_root_logger")
def test_serve_says_which_address_it_cannot_have(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config.write_text(CONFIG.replace("port: 0", f"port: {port}"), encoding="utf-8")
        assert main(["serve", "--config", str(config), "--log-level", "error"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"listen: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert len(err.splitlines()) == 1


def test_serve_says_which_records_file_it_cannot_write(config: Path, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "records.jsonl"
    config.write_text(f"{CONFIG}records: {{path: {path}}}\n", encoding="utf-8")
    ended = weir("serve", "--config", config, "--log-level", "error")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"records.path: '{path}': cannot be opened: No such file or directory\n"


@pytest.mark.parametrize(
    "line",
    [
        "engine --kind vllm --profile {missing}",
        "fit {missing} --format azure --name x -o {out}",
        "plan --trace {missing} --format azure -o {out}",
        "run --url http://127.0.0.1:1 --model m --workload {missing} --out {out}",
        "report {missing}",
        "demo --duration 0 --out {out}",
    ],
)
def test_every_other_verb_refuses_bad_input_in_one_line_too(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = line.format(missing=tmp_path / "missing", out=tmp_path / "out").split()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"weir {arguments[0]}: ")
    assert len(err.splitlines()) == 1


def test_ctrl_c_is_one_line_and_status_130(tmp_path: Path) -> None:
    file = tmp_path / "never-written.yaml"
    os.mkfifo(file)
    command = [sys.executable, "-m", "weir", "check", str(file)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        with file.open("w"):  # Opens when the command does, which then waits for what is never written.
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "\nweir check: interrupted\n"


def test_an_engine_says_which_address_it_cannot_have(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["engine", "--kind", "sglang", "--port", str(taken.getsockname()[1])]) == 2
    err = capsys.readouterr().err
    assert err.startswith("weir engine: ")
    assert "Address already in use" in err
    assert len(err.splitlines()) == 1
