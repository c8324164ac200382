"""The verb, and what it asks an engine: against stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulator.conftest import started
from weir.cli import main


def test_an_engine_beside_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "sglang.yaml"
    with started("sglang", "--profile", "h100_llama-3-8b") as engine:
        config.write_text("# Its name.\nserved-model-name: tiny\nenable-trace: true\n")
        assert main(["preflight", "--engine", engine.url, "--config", str(config)]) == 0
        assert "not visible  enable-trace" in capsys.readouterr().out
        config.write_text("# Its name.\nserved-model-name: other\n")
        assert main(["preflight", "--engine", engine.url, "--config", str(config), "--json"]) == 1
    (setting,) = json.loads(capsys.readouterr().out)["settings"]
    assert (setting["found"], setting["result"], setting["reason"]) == ("tiny", "differs", "Its name.")


def test_a_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "start.sh"
    file.write_text("vllm serve m --seed 0\n")
    assert main(["preflight", "--command", f"@{file}"]) == 0
    assert main(["preflight", "--command", "vllm serve m --sed 0"]) == 1
    assert "instead: --seed?" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--engine", "http://127.0.0.1:1"], ["--command", "ls"], ["--command", "vllm serve m", "--config", "x"]],
)
def test_what_cannot_be_found_out_is_said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", *arguments]) == 2
    assert capsys.readouterr().err.startswith("weir preflight: ")
