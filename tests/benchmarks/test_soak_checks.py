from dataclasses import replace

import msgspec
import pytest

from benchmarks import soak_checks
from benchmarks.faulty_engine import BEHAVIOURS, Stats
from benchmarks.soak_checks import Evidence, Gateway
from benchmarks.soak_traffic import Case, Leaving, Sent
from protocol.records import GatewayOutcome, GatewayRecord

MIB = 1 << 20
PHASES = ("receive", "connect", "first_byte", "relay")


def sent(number: int, *, model: str = "steady", leave: Leaving | None = None, rough: bool = False) -> Sent:
    case = Case(model=model, ask="small", leave=leave, rough=rough)
    return Sent(request_id=f"soak-{number}", case=case, status=None if leave else 200, whole=leave is None)


def record(number: int, *, last_phase: str = "relay", outcome: GatewayOutcome = "ok") -> GatewayRecord:
    return GatewayRecord(
        request_id=f"soak-{number}",
        trace_id="0" * 32,
        span_id="0" * 16,
        parent_span_id=None,
        received_unix_ns=0,
        path="/v1/chat/completions",
        model="steady",
        stream=False,
        route="steady",
        pool="steady",
        endpoint="steady-0",
        attempts=1,
        status=200,
        outcome=outcome,
        error_source=None,
        error_kind=None,
        request_bytes=1,
        response_bytes=1,
        marks_ns={"receive": 0, last_phase: 1, "finish": 2, "end": 3},
        first_token_ns=None,
        chunks=1,
        gap_max_ns=None,
        events=0,
        prompt_tokens=None,
        completion_tokens=None,
        cached_tokens=None,
        finish_reason="stop",
    )


def gateway(**in_flight: float) -> Gateway:
    return Gateway(in_flight={"weir_in_flight_requests": 0, **in_flight}, records_dropped=0, open_files=20)


GOOD = Evidence(
    sent=[sent(0), sent(1, model="shaky"), *(sent(2 + n, leave="sent", rough=n == 0) for n in range(4))],
    records=[
        record(0),
        record(1),
        *(record(2 + n, last_phase=phase, outcome="client_gone") for n, phase in enumerate(PHASES)),
    ],
    engine=Stats(at_work=0, cut=2, served=dict.fromkeys(BEHAVIOURS, 1)),
    before=gateway(),
    after=gateway(),
    rss_bytes=[60 * MIB + n * MIB for n in range(30)] + [90 * MIB] * 30,
    log="INFO weir.proxy ready\n",
    exit_status=0,
)


def test_a_good_run_passes_every_check() -> None:
    assert [check(GOOD).title for check in soak_checks.CHECKS if not check(GOOD).passed] == []


def with_first(changed: Sent) -> Evidence:
    return replace(GOOD, sent=[changed, *GOOD.sent[1:]])


BAD = {
    "steady not whole": ("answers", with_first(replace(sent(0), whole=False)), "1 not whole, the first soak-0 (small)"),
    "steady refused": ("answers", with_first(replace(sent(0), status=503)), "1 not whole"),
    "no answer": ("answers", with_first(replace(sent(0, model="shaky"), status=None)), "1 without an answer"),
    "hung": ("answers", with_first(replace(sent(0), hung=True)), "1 hung"),
    "crossed": ("answers", with_first(replace(sent(0), crossed=True)), "1 crossed"),
    "no good engine asked": ("answers", with_first(sent(0, model="shaky")), "of 0 to good engines"),
    "fault not met": ("coverage", replace(GOOD, engine=Stats(served={"small": 9})), "never met: 503, close-idle"),
    "phase not left in": ("coverage", replace(GOOD, records=GOOD.records[:3]), "never met: connect, first_byte, relay"),
    "ledger": ("in flight", replace(GOOD, after=gateway(steady=1)), "not zero: {'steady': 1}"),
    "no ledger": ("in flight", replace(GOOD, after=replace(gateway(), in_flight={})), "0 ledgers"),
    "zombie": ("in flight", replace(GOOD, engine=Stats(at_work=1)), "1 still at work"),
    "record missing": ("records", replace(GOOD, records=GOOD.records[1:]), "missing ['soak-0']"),
    "polite leaver without": (
        "records",
        replace(GOOD, records=[*GOOD.records[:3], *GOOD.records[4:]]),
        "missing ['soak-3']",
    ),
    "record twice": ("records", replace(GOOD, records=[*GOOD.records, record(1)]), "twice ['soak-1']"),
    "record of nobody": ("records", replace(GOOD, records=[*GOOD.records, record(99)]), "of nobody ['soak-99']"),
    "records dropped": ("records", replace(GOOD, after=replace(gateway(), records_dropped=2)), "dropped 2"),
    "memory": (
        "memory",
        replace(GOOD, rss_bytes=[60 * MIB] * 30 + [60 * MIB + n * MIB // 4 for n in range(30)]),
        "fitted growth +7.50 MiB, allowed 6",
    ),
    "files": ("open files", replace(GOOD, after=replace(gateway(), open_files=24)), "20 before, 24 after"),
    "traceback": ("log and exit", replace(GOOD, log="x\nTraceback (most recent call last):\n"), "1 faults of its own"),
    "exit status": ("log and exit", replace(GOOD, exit_status=None), "exit status None"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_thing_that_stays_behind_fails_its_check_and_no_other(name: str) -> None:
    title, evidence, found = BAD[name]
    failed = {
        check.title: check.found for check in (check(evidence) for check in soak_checks.CHECKS) if not check.passed
    }
    # A record that is missing may also be the only one of a client that left in its phase.
    failed.pop("coverage" if title == "records" else "", None)
    failed.pop("records" if name == "phase not left in" else "", None)
    failed.pop("coverage" if name == "zombie" else "", None)
    assert list(failed) == [title]
    assert found in failed[title]


def test_a_rough_leaver_needs_no_record() -> None:
    assert soak_checks.recorded(replace(GOOD, records=[*GOOD.records[:2], *GOOD.records[3:]])).passed


def test_the_engines_statistics_travel_as_json() -> None:
    stats = msgspec.json.decode(msgspec.json.encode(GOOD.engine), type=Stats)
    assert stats == GOOD.engine
