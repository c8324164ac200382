import msgspec
import numpy as np
import pytest

from benchmarks import fidelity
from benchmarks.fidelity import Case, Cell, Latencies, Results, render


def latencies(ttft, e2e):
    return Latencies(ttft_p50_s=0.1, ttft_p99_s=ttft, e2e_p99_s=e2e, cached_share=0.0)


def cell(ratios, load="keeps up"):
    return Cell(
        name="log",
        load=load,
        slowdown=1.0,
        log=latencies(2.0, 10.0),
        fitted=[latencies(2.0 * ratio, 10.0 * ratio) for ratio in ratios],
        poisson=[latencies(0.2, 5.0)],
    )


def test_a_workload_that_is_close_has_no_problem():
    assert cell(np.linspace(0.9, 1.1, 11)).problems() == []
    assert cell([0.05]).poisson_ratio("ttft_p99_s") == pytest.approx(0.1)


@pytest.mark.parametrize(("load", "problem"), [("keeps up", True), ("transient overload", False)])
def test_how_far_off_it_may_be_depends_on_the_load(load, problem):
    found = cell([0.6, 0.8, 0.8, 0.8, 1.2], load).problems()
    assert bool(found) is problem
    assert not problem or found[0] == "log, keeps up: TTFT P99 is off by -20%, 10% at most"


def test_a_log_outside_of_all_seeds_is_a_problem():
    assert "log, keeps up: TTFT P99 of the log is outside the seeds' 5-95 %" in cell([1.05] * 10).problems()


def test_the_table_has_a_row_for_each_cell_and_stands_between_its_marks(tmp_path, monkeypatch):
    results = Results(date="2026-12-01", seeds=3, cells=[cell([0.9, 1.0, 1.1])])
    row = "| log | keeps up | 0.10 / 2.00 / 10.0 | 1.00 (0.91–1.09) | 1.00 (0.91–1.09) | 0.10 / 0.50 |"
    assert render(results).splitlines()[-1] == row
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fidelity -->\nold\n<!-- /fidelity -->\nafter\n")
    monkeypatch.setattr(fidelity, "PAGE", page)
    fidelity.write_page(results)
    assert page.read_text() == f"before\n<!-- fidelity -->\n{render(results)}<!-- /fidelity -->\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="no <!-- fidelity -->"):
        fidelity.write_page(results)


def test_the_page_has_the_kept_figures():
    kept = msgspec.json.decode(fidelity.DATA.read_bytes(), type=Results)
    assert render(kept) in fidelity.PAGE.read_text(encoding="utf-8")


def test_a_log_is_measured_from_its_file_on(tmp_path, capsys, monkeypatch):
    """A small one, at one load."""
    rng = np.random.default_rng(1)
    lines = [
        f'{{"timestamp": {at * 1000:.0f}, "input_length": {prompt}, "output_length": {output}}}\n'
        for at, prompt, output in zip(
            np.sort(rng.random(150) * 60), rng.integers(100, 900, 150), rng.integers(2, 30, 150), strict=True
        )
    ]
    (tmp_path / "log.jsonl").write_text("".join(lines))
    monkeypatch.setattr(fidelity, "CASES", (Case(name="small", file="log.jsonl", slowdown={"keeps up": 1.0}),))
    out = tmp_path / "out.json"
    fidelity.main([str(tmp_path), "--seeds", "3", "--out", str(out)])
    kept = msgspec.json.decode(out.read_bytes(), type=Results)
    assert [one.name for one in kept.cells] == ["small"]
    assert len(kept.cells[0].fitted) == 3
    assert 0.2 < float(np.median(kept.cells[0].ratios("e2e_p99_s"))) < 5
    assert "| small | keeps up |" in capsys.readouterr().out
