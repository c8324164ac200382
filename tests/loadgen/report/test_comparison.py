"""The comparison as text: what differs first, the claim or its absence said plainly, 100 columns at most."""

import argparse

import pytest

from loadgen.report.compare_command import add_compare_arguments, compare_runs
from loadgen.report.terminal import WIDTH


@pytest.fixture
def shown(made, tmp_path, capsys):
    """What the verb prints for so many pairs of runs of 400 requests each, B's first tokens `slower` times as late."""

    def text(repeats, *, slower=1.0, b_changes=None, paired=True, folder="x"):
        for side, factor, at in (("a", 1.0, 0), ("b", slower, 1)):
            for repeat in range(repeats):
                requests = [
                    made.request(i, at_ms=10 * i + repeat + at * (not paired), ttft_ms=(100 + i % 7 + repeat) * factor)
                    for i in range(400)
                ]
                made.run_directory(
                    tmp_path / folder / side / f"r{repeat}",
                    requests,
                    started_unix_ns=2 * repeat + at,
                    **(b_changes or {} if side == "b" else {}),
                )
        parser = argparse.ArgumentParser()
        add_compare_arguments(parser)
        compare_runs(parser.parse_args([str(tmp_path / folder / "a"), str(tmp_path / folder / "b")]))
        return capsys.readouterr().out

    return text


def test_no_line_is_wider_than_the_terminal(shown):
    assert max(map(len, shown(6, slower=1.5).splitlines())) <= WIDTH
    assert max(map(len, shown(2, slower=1.5, folder="y").splitlines())) <= WIDTH


def test_what_differs_comes_first_and_sameness_is_said(shown):
    text = shown(6, slower=1.5, b_changes={"host": {"cpu": "four cores"}})
    assert text.index("host.cpu") < text.index("B against A")
    assert "four cores" in text
    assert "Nothing that was recorded of hosts" in shown(6, folder="y")


def test_many_values_of_a_field_are_counted_not_listed(shown, made, tmp_path, capsys):
    shown(4)
    for repeat in range(4):
        requests = [made.request(i, at_ms=10 * i + repeat) for i in range(400)]
        made.run_directory(tmp_path / "c" / f"r{repeat}", requests, host={"cpu": f"cpu{repeat}"})
    parser = argparse.ArgumentParser()
    add_compare_arguments(parser)
    compare_runs(parser.parse_args([str(tmp_path / "x" / "a"), str(tmp_path / "c")]))
    assert "cpu0, cpu1, cpu2 … 4 values" in capsys.readouterr().out


def test_a_claim_has_estimate_interval_p_and_verdict(shown):
    text = shown(8, slower=1.5)
    row = next(line for line in text.splitlines() if line.strip().startswith("TTFT P99"))
    assert "1.500" in row
    verdicts = text[text.index("verdict") :]
    assert "worse" in verdicts
    assert "8 pairs of runs" in text
    assert "B's TTFT is 1.500 times A's at the median" in text.replace("\n", " ")
    assert "≤ 128 prompt tokens" in text


def test_five_pairs_are_told_that_their_intervals_hold_less_often(shown):
    assert "the intervals hold with 93.8%" in shown(5).replace("\n", " ")


def test_too_few_runs_are_told_so_and_their_intervals_are_labelled(shown):
    text = shown(2, slower=1.5).replace("\n", " ")
    assert "THE RUNS DO NOT CARRY A CLAIM: 2 a side, and 5 are the least" in text
    assert "Within-run only: block bootstrap" in text
    assert "B against A" not in text


def test_unpaired_runs_are_told_why(shown):
    assert "Request by request: not paired" in shown(5, paired=False)
