"""Every subject answers every probe in the shape that the real engine's captured answer has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.conftest import CAPTURES, Subject, note
from tests.contract.known import KNOWN
from tests.contract.probes import PROBES, Probe, shape
from tools.engines.launch import VERSIONS

pytestmark = pytest.mark.timeout(240)


def capture_path(kind: str, probe: Probe) -> Path:
    return CAPTURES / kind / (probe.name.replace(", ", "-").replace(" ", "_").replace("'", "") + ".http")


def ask(base_url: httpx.URL, probe: Probe) -> httpx.Response:
    """On a connection of its own: SGLang resets one on which it has failed inside."""
    body = {"content": probe.body} if isinstance(probe.body, bytes) else {"json": probe.body}
    with httpx.Client(base_url=base_url, timeout=120, trust_env=False, verify=False) as client:
        return client.request(probe.method, probe.path, headers=probe.headers, **body)


def write_capture(path: Path, kind: str, probe: Probe, answer: httpx.Response) -> None:
    """The raw answer behind a head that says what was asked of which version."""
    asked = probe.body.decode() if isinstance(probe.body, bytes) else json.dumps(probe.body)
    said = f" {asked[:300]}" if probe.body is not None else ""
    lines = [
        f"# {kind} {VERSIONS[kind]}: {probe.method} {probe.path}{said}",
        f"HTTP/1.1 {answer.status_code}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
        "",
        "",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(lines).encode() + answer.content)


def read_capture(path: Path) -> dict[str, Any]:
    head, _, body = path.read_bytes().partition(b"\n\n")
    _, status, *fields = head.decode().split("\n")
    headers = dict(field.split(": ", 1) for field in fields)
    return shape(int(status.split()[1]), headers, body)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_an_answer_has_the_shape_of_the_real_engines(
    subject: Subject, probe: Probe, request: pytest.FixtureRequest
) -> None:
    if subject.kind not in probe.kinds:
        pytest.skip(f"{subject.kind} has no such route")
    answer = ask(subject.http.base_url, probe)
    if subject.real and os.environ.get("WEIR_CAPTURE"):
        write_capture(capture_path(subject.kind, probe), subject.kind, probe, answer)
    wanted = read_capture(capture_path(subject.kind, probe))
    found = shape(answer.status_code, dict(answer.headers), answer.content)
    reason = None if subject.real else KNOWN.get((subject.kind, probe.name))
    note(request.config, probe.name, subject, "same" if found == wanted else reason or "DIFFERS")
    if reason is None:
        assert found == wanted
    else:
        assert found != wanted, f"no longer different: take it out of known.py ({reason})"
