import argparse

import pytest

from loadgen.workload.command import add_fit_arguments, fit
from loadgen.workload.description import load_workload


def weir_fit(*arguments):
    parser = argparse.ArgumentParser()
    add_fit_arguments(parser)
    return fit(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def log(tmp_path):
    """Three minutes of two requests per second, the first without output."""
    rows = [f"2023-11-16 18:{k // 120:02}:{k % 120 / 2:09.6f},{100 + k % 50},{k % 9}\n" for k in range(361)]
    path = tmp_path / "log.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path


def test_fit_writes_a_workload_and_says_how_well_it_fits(tmp_path, log, capsys):
    out = tmp_path / "w.yaml"
    assert weir_fit(log, "-o", out, "--licence", "mine") == 0
    workload = load_workload(out)
    assert workload.name == "w"
    assert (workload.source.rows, workload.source.licence) == (361, "mine")
    assert "ISCA 2024" in workload.source.citation
    printed = capsys.readouterr()
    first, *verdicts = printed.out.splitlines()
    assert first == f"{out}: 361 requests in 180 s"
    assert [line.split()[0] for line in verdicts] == ["arrivals", "prompt", "output"]
    assert "requests with 0 tokens in or out count as 1" in printed.err


def test_a_rotated_log_is_fitted_as_one(tmp_path, log):
    head, *rows = log.read_text().splitlines(keepends=True)
    parts = [tmp_path / "log.1.csv", tmp_path / "log.2.csv"]
    for part, half in zip(parts, (rows[:180], rows[180:]), strict=True):
        part.write_text(head + "".join(half))
    assert weir_fit(*parts, "-o", tmp_path / "w.yaml", "--name", "both") == 0
    workload = load_workload(tmp_path / "w.yaml")
    assert (workload.name, workload.source.rows) == ("both", 361)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n", "of no format that is known"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no usable row (it is empty)"),
        ('{"prompt": "x", "output_tokens_count": 5}\n', "give --tokenizer FILE"),
        ('{"prompt_tokens_count": 5, "output_tokens_count": 5, "prompt": "x"}\n', "has no times, so there is no rate"),
    ],
)
def test_what_cannot_be_fitted_is_one_line_and_exit_2(tmp_path, capsys, content, message):
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    assert weir_fit(path, "-o", tmp_path / "w.yaml") == 2
    printed = capsys.readouterr().err
    assert printed.startswith("weir fit: ")
    assert message in printed
    assert not (tmp_path / "w.yaml").exists()


def test_bad_rows_may_be_allowed(tmp_path, log, capsys):
    log.write_text(log.read_text() + "nonsense,1,1\n")
    assert weir_fit(log, "-o", tmp_path / "w.yaml") == 2
    assert weir_fit(log, "-o", tmp_path / "w.yaml", "--bad-rows", "0.01") == 0
    assert "log: 1 rows are left out: not readable" in capsys.readouterr().err
