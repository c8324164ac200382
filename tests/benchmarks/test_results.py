from pathlib import Path

import msgspec
import pytest

from benchmarks import results
from benchmarks.results import Report


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
        scenarios=[],
        windows=[],
        unmeasured=[],
    )
    path = tmp_path / "new" / "report.json"
    results.save(report, path)
    assert msgspec.json.decode(path.read_bytes(), type=Report) == report
    assert report.machine.cores >= 1
