"""What one run says of its load, and what levels of runs say of the system."""

import dataclasses

import msgspec
import pytest

from loadgen.analyze.capacity import RunLoad, capacity, parse_slo, run_load

SLO = parse_slo("ttft_p99=500ms")


@pytest.mark.parametrize(
    ("text", "share", "limit_s"),
    [("ttft_p99=500ms", 0.99, 0.5), ("e2e_p50=2s", 0.5, 2.0), ("tpot_p99.9=1.5ms", 0.999, 0.0015)],
)
def test_an_slo_is_a_metric_a_share_and_a_limit(text, share, limit_s):
    found = parse_slo(text)
    assert (found.share, found.limit_s) == (pytest.approx(share), pytest.approx(limit_s))


@pytest.mark.parametrize("text", ["ttft", "ttft_p99=500", "ttft_p100=1s", "ttft_p0=1s", "itl_p99=1s", "ttft_p99=-1s"])
def test_what_is_no_slo_is_told_how_to_write_one(text):
    with pytest.raises(ValueError, match="write METRIC_pPERCENT=TIME"):
        parse_slo(text)


def test_a_promise_is_kept_by_requests_that_succeed_in_time(made):
    assert SLO.kept_by(made.request(ttft_ms=500))
    assert not SLO.kept_by(made.request(ttft_ms=501))
    assert not SLO.kept_by(made.failed())
    assert parse_slo("tpot_p99=1ms").kept_by(made.request(tokens=1))


def test_a_run_is_a_point_of_the_curve(made):
    requests = [made.request(i, at_ms=100 * i, ttft_ms=100 if i % 10 else 600) for i in range(200)]
    found = run_load(made.evidence([*requests, made.failed(200, at_ms=20_000)]), [SLO])
    assert found.offered == pytest.approx(201 / 21)
    assert found.served == pytest.approx(10, rel=0.01)
    assert found.kept == {"ttft_p99=500ms": pytest.approx(180 / 201)}
    assert found.goodput == pytest.approx(180 / 20.1, rel=0.01)
    assert not found.grows


def test_a_queue_that_does_not_drain_grows(made):
    requests = [made.request(i, at_ms=100 * i, ttft_ms=100 + 50 * i) for i in range(200)]
    assert run_load(made.evidence(requests), []).grows


def test_of_a_closed_loop_the_load_is_what_was_sent(made):
    found = made.evidence([made.request(i, at_ms=100 * i) for i in range(101)])
    closed = dataclasses.replace(found, header=msgspec.structs.replace(found.header, concurrency=4, duration_ns=0))
    assert run_load(closed, []).offered == pytest.approx(10.1)


@pytest.mark.parametrize("which", ["nothing", "one", "at once"])
def test_a_run_without_a_rate_is_no_point(made, which):
    requests = {
        "nothing": [made.failed(0), made.failed(1)],
        "one": [made.request(0)],
        "at once": [made.request(0), made.request(1, ttft_ms=300)],
    }
    with pytest.raises(ValueError, match="there is no throughput"):
        run_load(made.evidence(requests[which]), [])


def level(load, *, capacity=100.0, kept=1.0, repeats=5):
    served = min(load, capacity)
    return [
        RunLoad(
            offered=load + repeat / 10,
            served=served + repeat / 10,
            in_flight=served / 10 + repeat / 100,
            grows=load > capacity,
            kept={SLO.text: kept},
            goodput=served * kept,
        )
        for repeat in range(repeats)
    ]


def levels(repeats=5, breaks_from=200.0):
    return {
        f"x{load}": level(float(load), kept=0.5 if load >= breaks_from else 0.995, repeats=repeats)
        for load in range(150, 49, -10)
    }


def test_knee_drain_and_law_come_from_all_runs():
    found = capacity("a", levels(), [])
    assert found.knee.load == pytest.approx(100, abs=2)
    assert found.drains_to == pytest.approx(100.2)
    assert [each.name for each in found.levels[:2]] == ["x50", "x60"]
    assert found.scalability is not None
    assert found.no_knee is found.no_scalability is None


def test_too_few_levels_say_so():
    found = capacity("a", {"x1": level(10.0)}, [])
    assert found.no_knee == "1 loads were measured, a knee needs 7"
    assert found.no_scalability.startswith("fewer than 7")


def test_a_closed_loop_has_no_knee():
    assert "closed loop" in capacity("a", levels(), [], closed_loop=True).no_knee


def test_the_capacity_is_the_last_load_before_the_first_that_breaks():
    found = capacity("a", levels(breaks_from=90), [SLO]).slos[0]
    assert (found.holds_at, found.breaks_at) == (pytest.approx(80.2), pytest.approx(90.2))


def test_promises_that_always_or_never_hold_have_one_open_end():
    assert capacity("a", levels(), [SLO]).slos[0].breaks_at is None
    assert capacity("a", levels(breaks_from=0), [SLO]).slos[0].holds_at is None


def test_a_level_holds_by_its_lower_bound_and_below_five_runs_by_its_mean():
    uneven = [
        dataclasses.replace(run, kept={SLO.text: share})
        for run, share in zip(level(10.0), [1, 1, 1, 1, 0.96], strict=True)
    ]
    sure, few = capacity("a", {"x": uneven}, [SLO]).levels[0], capacity("a", {"x": uneven[1:]}, [SLO]).levels[0]
    assert (sure.kept[SLO.text], sure.passes[SLO.text]) == (pytest.approx(0.992), False)
    assert (few.kept[SLO.text], few.kept_low[SLO.text], few.passes[SLO.text]) == (pytest.approx(0.99), None, True)


def test_a_queue_that_always_grows_drains_nowhere():
    assert capacity("a", {"x": level(200.0)}, []).drains_to is None
