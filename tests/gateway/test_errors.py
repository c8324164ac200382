"""Everything that can go wrong says who is to blame, what kind it is, and what to do about it."""

from __future__ import annotations

import inspect
import re

import pytest

from gateway import errors
from gateway.errors import GatewayError
from protocol.first_event import ErrorInfo

FULL = ErrorInfo(
    status=503, message="The request queue is full; try again later.", kind="SERVICE_UNAVAILABLE", error={"code": 503}
)
SAMPLES: dict[str, GatewayError] = {
    "invalid_request": errors.invalid_request("`stream` must be true or false.", "stream"),
    "missing_model": errors.missing_model(["m", "n"]),
    "unreadable_body": errors.unreadable_body(["m", "n"]),
    "unknown_model": errors.unknown_model("x", ["m", "n"]),
    "body_too_large": errors.body_too_large(1000),
    "slow_request": errors.slow_request(60.0),
    "overloaded": errors.overloaded(10),
    "draining": errors.draining(),
    "cut_by_shutdown": errors.cut_by_shutdown(),
    "internal": errors.internal(),
    "no_endpoint": errors.no_endpoint("pool-a", 4),
    "connect_failed": errors.connect_failed("Connection refused"),
    "connect_timeout": errors.connect_timeout(2.0),
    "closed_before_response": errors.closed_before_response(),
    "stale_connection": errors.stale_connection(),
    "garbage": errors.garbage("Invalid response line"),
    "truncated": errors.truncated("the connection was closed"),
    "error_in_stream": errors.error_in_stream(),
    "cut_stream": errors.cut_stream(),
    "lost_in_stream": errors.lost_in_stream({"message": "EngineCore died", "code": 500}),
    "not_joined": errors.not_joined("other text"),
    "answered_in_stream": errors.answered_in_stream(FULL),
    "answered_too_late": errors.answered_too_late(503),
    "first_byte_timeout": errors.first_byte_timeout(300.0),
    "chunk_gap_timeout": errors.chunk_gap_timeout(120.0),
    "total_timeout": errors.total_timeout(3600.0),
}
ALL = pytest.mark.parametrize("error", SAMPLES.values(), ids=SAMPLES)


def test_every_error_is_among_the_samples() -> None:
    makers = {
        name for name, made in vars(errors).items() if inspect.isfunction(made) and made.__module__ == errors.__name__
    }
    assert SAMPLES.keys() == makers


TRIED_AGAIN = ("connect_failed", "connect_timeout")
"""What a client never sees: when nothing else is left it is told of the pool."""


@ALL
def test_kind_is_a_label_and_the_status_fits_the_source(error: GatewayError) -> None:
    assert re.fullmatch(r"[a-z_]{3,30}", error.kind)
    assert (
        error.status
        in {"client": (400, 404, 408, 413), "gateway": (500, 503), "upstream": (500, 502, 503, 504)}[error.source]
    )


def test_kinds_are_told_apart_except_for_the_two_ways_of_an_invalid_request() -> None:
    same = {
        "missing_model": "invalid_request",
        "unreadable_body": "invalid_request",
        "cut_stream": "truncated",
        "not_joined": "truncated",
    }
    kinds = sorted(error.kind for name, error in SAMPLES.items() if name not in same)
    assert kinds == sorted(set(kinds))
    assert all(SAMPLES[name].kind == SAMPLES[other].kind for name, other in same.items())
    assert SAMPLES["stale_connection"].kind == errors.STALE
    assert SAMPLES["truncated"].kind == errors.TRUNCATED


@ALL
def test_the_message_is_a_sentence_with_a_remedy(error: GatewayError) -> None:
    assert str(error) == error.message
    assert re.fullmatch(r"[A-Z`][^\n]*[^.]\.", error.message)
    remedies = (
        "again", "set `", "available", "shorten", "another one is tried", "a new one is tried", "must be",
        "its log has", "ask for fewer", "its words are there",
    )  # fmt: skip
    assert any(remedy in error.message for remedy in remedies)


@ALL
def test_whoever_is_told_to_come_back_is_told_when(error: GatewayError) -> None:
    comes_back = error.status == 503 and error.kind not in TRIED_AGAIN and error.engine_error is None
    assert (error.retry_after_s is not None) is comes_back
    assert error.retry_after_s is None or error.retry_after_s >= 1


def test_messages_carry_the_numbers_and_names_that_matter() -> None:
    assert "1000 bytes" in SAMPLES["body_too_large"].message
    assert "within 60 s" in SAMPLES["slow_request"].message
    assert "in 4 s" in SAMPLES["no_endpoint"].message
    assert SAMPLES["no_endpoint"].retry_after_s == 4
    assert "pool-a" in SAMPLES["no_endpoint"].message
    assert "within 0.5 s" in errors.connect_timeout(0.5).message
    assert "m, n" in SAMPLES["missing_model"].message
    assert "m, n" in SAMPLES["unknown_model"].message
    assert {error.param for error in SAMPLES.values()} == {None, "model", "stream"}


def test_a_made_up_model_name_is_not_repeated_at_length() -> None:
    assert "`" + "x" * 100 + "`" in errors.unknown_model("x" * 100, ["m"]).message
    assert "`" + "x" * 100 + "…`" in errors.unknown_model("x" * 101, ["m"]).message


def in_stream(status: int) -> GatewayError:
    return errors.answered_in_stream(ErrorInfo(status=status, message="No.", kind=None, error={"message": "No."}))


@pytest.mark.parametrize(
    ("status", "source"),
    [(400, "client"), (404, "client"), (408, "upstream"), (422, "client"), (429, "upstream"), (500, "upstream")],
)
def test_an_error_in_a_success_is_whose_its_status_says(status: int, source: str) -> None:
    assert (in_stream(status).source, in_stream(status).status) == (source, status)


def test_the_failure_policies_see_the_status_that_an_engine_meant_and_else_the_kind() -> None:
    assert (in_stream(503).cause, in_stream(503).engine_error) == (503, {"message": "No."})
    assert errors.closed_before_response().cause == "closed_before_response"


def test_a_refusal_to_start_is_one_line_for_each_problem() -> None:
    refused = errors.ConfigError(["weir.yaml:3: a", "weir.yaml:4: b"])
    assert (str(refused), refused.problems) == ("weir.yaml:3: a\nweir.yaml:4: b", ["weir.yaml:3: a", "weir.yaml:4: b"])
