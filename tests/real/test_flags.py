"""Every setting of deploy/engines is parsed by the pinned engine's own parser; a wrong one is not.

WEIR_CAPTURE=1 writes the list of flags that `weir preflight` knows anew.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from loadgen.preflight.command_line import known_flags
from loadgen.preflight.engine import ask
from tools.engines import places
from tools.engines.launch import RunningEngine, python

KNOWN_FLAGS = Path("loadgen/preflight/known_flags")

PARSERS = {
    "vllm": """
import sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
print(*(flag for action in parser._actions for flag in action.option_strings))
print(parser.parse_args(sys.argv[1:]).max_num_seqs)
""",
    "sglang": """
import sys
import torchvision_operators
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
import argparse
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(*(flag for action in parser._actions for flag in action.option_strings))
print(parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(sys.argv[1:])).max_running_requests)
""",
}


def parse(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python(kind)), "-c", PARSERS[kind], *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(places.HERE / "sglang_cpu"), "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(240)
def test_the_engine_takes_every_setting_and_refuses_another(engine: RunningEngine, tmp_path: Path) -> None:
    file = Path("deploy/engines") / f"{engine.kind}.yaml"
    good = parse(engine.kind, "--config", str(file))
    *_, flags, value = good.stdout.splitlines() or [good.stderr[-2000:]]
    assert value == "256"
    own = {flag for flag in flags.split() if flag.startswith("--")}
    if os.environ.get("WEIR_CAPTURE"):
        (KNOWN_FLAGS / f"{engine.kind}.txt").write_text("\n".join(sorted(own)) + "\n", encoding="ascii")
        known_flags.cache_clear()
    assert own == known_flags(engine.kind)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(file.read_text() + "\nno-such-setting: 1\n")
    assert parse(engine.kind, "--config", str(wrong)).returncode != 0


def test_a_running_engine_tells_what_it_runs_with(engine: RunningEngine) -> None:
    found = ask(engine.url)
    name = {"vllm": "max_num_seqs", "sglang": "max_running_requests"}[engine.kind]
    assert (found.kind, found.effective[name]) == (engine.kind, 4)
