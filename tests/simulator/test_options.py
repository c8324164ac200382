"""The command line of an engine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from simulator.options import ServerOptions, add_arguments, from_arguments


def parse(*arguments: str) -> ServerOptions:
    parser = argparse.ArgumentParser()
    parser.add_argument("--verb", default="engine")
    add_arguments(parser)
    return from_arguments(parser.parse_args(arguments))


def test_defaults_are_those_of_the_options() -> None:
    assert parse("--kind", "vllm") == ServerOptions(kind="vllm", profile="h100_llama-3-8b")


def test_flags_of_both_engines_mean_the_same() -> None:
    vllm = parse("--kind", "vllm", "--max-num-seqs", "4", "--max-model-len", "99", "--block-size", "8")
    sglang = parse(*("--kind", "vllm", "--max-running-requests", "4", "--context-length", "99", "--page-size", "8"))
    assert vllm == sglang
    assert (vllm.max_num_seqs, vllm.max_model_len, vllm.page_size) == (4, 99, 8)
    assert parse("--kind", "sglang", "--record-streams", "x").record_streams == Path("x")


def test_counts_are_positive(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--kind", "vllm", "--max-num-seqs", "0")
    assert "0 is not a positive number" in capsys.readouterr().err
