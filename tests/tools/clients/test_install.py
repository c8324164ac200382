from pathlib import Path

import pytest

from tools.clients import install


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_is_there_as_its_lock_asks_stays(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = install.place("sdk")
    assert place == cache / "weir" / "clients" / "sdk"
    place.mkdir(parents=True)
    (place / ".installed").write_text(install._identity("sdk"))
    assert install.main(["sdk"]) == 0
    assert capsys.readouterr().out == "sdk: there\n"


def test_another_lock_does_not_count() -> None:
    place = install.place("vercel")
    place.mkdir(parents=True)
    (place / ".installed").write_text("another")
    assert not install.installed("vercel")


@pytest.mark.parametrize("name", install.NAMES)
def test_each_is_pinned(name: str) -> None:
    assert ("sha512-" if name == "vercel" else "--hash=sha256:") in install.lock(name).read_text()


def test_an_unknown_client_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["sdk", "curl"]) == 2
    assert capsys.readouterr().err == "no such client: curl; there are sdk, litellm, vercel, guidellm, aiperf\n"
