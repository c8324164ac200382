from pathlib import Path

import msgspec
import pytest

from benchmarks import results
from benchmarks.results import LoadScenario, Report, StalledResult, StalledScenario, Window
from benchmarks.wire import Shape


def test_the_digest_follows_contents_and_names_of_the_gateways_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    source = tmp_path / "gateway" / "proxy.py"
    source.parent.mkdir()
    source.write_text("x = 1\n", encoding="utf-8")
    first = results.digest_sources()
    (tmp_path / "notes.py").write_text("", encoding="utf-8")
    assert results.digest_sources() == first
    source.write_text("x = 2\n", encoding="utf-8")
    changed = results.digest_sources()
    source.rename(source.with_name("relay.py"))
    assert len({first, changed, results.digest_sources()}) == 3


def test_outside_a_checkout_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert results.describe_commit() == "unknown"


def test_a_saved_report_reads_back(tmp_path: Path) -> None:
    report = Report(
        date="2026-01-01",
        command=["python"],
        commit="c0ffee",
        sources_sha256="0" * 64,
        sources_changed=False,
        machine=results.describe_machine(),
        versions={"nginx": "1"},
        scenarios=[
            LoadScenario(name="S3", connections=1, requests=2, limit_s=3, shape=Shape(chunks=4)),
            StalledScenario(name="stalled", clients=8, seconds=60),
        ],
        windows=[
            Window(
                repeat=0,
                scenario="stalled",
                contestant="nginx",
                result=stalled(3, 5, 5),
                cpu_s=0.01,
                cpu_resolution=0.5,
                rss_peak_bytes=1,
                foreign_cores=0.0,
            )
        ],
        missing=["envoy is not installed"],
        unmeasured=[],
    )
    path = tmp_path / "new" / "report.json"
    results.save(report, path)
    assert msgspec.json.decode(path.read_bytes(), type=Report) == report
    assert report.machine.cores >= 1


def stalled(*taken_bytes: int) -> StalledResult:
    return StalledResult(clients=8, taken_bytes=[*taken_bytes], rss_before_bytes=1, rss_after_bytes=2, resumed=True)


@pytest.mark.parametrize(
    ("taken_bytes", "held_back"),
    [
        ((10, 20, 30, 40, 50, 60), False),
        ((10, 20, 30, 40, 40, 50), False),
        ((10, 20, 30, 40, 40, 40), True),
        # The stream is gone: nobody held anything back.
        ((10, 20, 30, 0, 0, 0), False),
    ],
)
def test_holding_back_is_taking_nothing_in_the_last_third(taken_bytes: tuple[int, ...], held_back: bool) -> None:
    assert stalled(*taken_bytes).held_back is held_back
