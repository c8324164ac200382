import json

import msgspec
import pytest

from loadgen.workload.importers.json_logs import read_mooncake, read_openai, read_weir
from loadgen.workload.importers.rows import BadRow, LeftOut, Row
from protocol.records import encode_line

NOON_NS = 1_790_000_000 * 10**9


@pytest.fixture
def log(tmp_path):
    def write(*lines):
        path = tmp_path / "log.jsonl"
        content = b"\n".join(one if isinstance(one, bytes) else msgspec.json.encode(one) for one in lines)
        path.write_bytes(content + b"\n")
        return path

    return write


def problem(rows):
    (found,) = rows
    assert isinstance(found, BadRow)
    return str(found).partition("log.jsonl:")[2]


def test_mooncake_blocks_are_segments_and_the_last_may_be_a_part(log):
    row = {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [3, 4, 9]}
    assert list(read_mooncake(log(row))) == [Row(1_500_000_000, 1100, 7, None, ((3, 512), (4, 512), (9, 76)))]


def test_blocks_may_be_missing_and_times_fractions(log):
    row = {"timestamp": 1.5, "input_length": 10, "output_length": 7}
    assert list(read_mooncake(log(row))) == [Row(1_500_000, 10, 7)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session_id": "a"}, "1: session_id 'a': a conversation of AIPerf: give --format aiperf"),
        ({"timestamp": 1e300}, "1: timestamp 1e+300: expected milliseconds"),
        ({"timestamp": -1}, "1: timestamp -1: expected milliseconds"),
        ({"input_length": None}, "1: input_length None: expected a count of tokens"),
        ({"hash_ids": [1]}, "1: hash_ids has 1 entries: expected 2, one for each 512 of 600 prompt tokens"),
        ({"hash_ids": ["a", "b"]}, "1: hash_ids ['a', 'b']: expected a list of numbers from 0 to 2^61 - 1"),
        ({"hash_ids": [2**61, 0]}, "1: hash_ids [2305843009213693952, 0]: expected a list of numbers from"),
        ({"hash_ids": 10**90}, f"1: hash_ids 1{'0' * 79}…: expected a list of numbers from"),
    ],
)
def test_a_row_that_is_none_of_mooncakes_is_named(log, changes, message):
    row = {"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [3, 4], **changes}
    assert problem(read_mooncake(log(json.dumps(row).encode()))).startswith(message)


def test_a_line_that_is_no_object_is_named(log):
    assert problem(read_mooncake(log(b"[1]"))).startswith("1: not a JSON object: ")
    assert problem(read_mooncake(log(b'{"a": "\xff"}'))).startswith("1: not a JSON object: ")


def test_blank_lines_are_nothing(log):
    row = msgspec.json.encode({"timestamp": 0, "input_length": 10, "output_length": 7})
    assert len(list(read_mooncake(log(b"", row, b"  ", row)))) == 2


USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


@pytest.mark.parametrize(
    "row",
    [
        {"created": 1_790_000_000, "usage": USAGE},
        {"timestamp": 1_790_000_000_000, "response": {"created": 5, "usage": USAGE}},
        {"created_at": 1_790_000_000_000_000, "body": {"usage": {"input_tokens": 12, "output_tokens": 5}}},
        {"time": NOON_NS, "usage": USAGE},
        {"startTime": "2026-09-21T14:13:20Z", "usage": USAGE},
        {"start_time": "2026-09-21 16:13:20.000000+02:00", "usage": USAGE},
        {"custom_id": "a", "response": {"status_code": 200, "body": {"created": 1_790_000_000.0, "usage": USAGE}}},
    ],
    ids=["completion", "proxy", "responses", "nanoseconds", "iso", "zone", "batch"],
)
def test_usage_and_time_are_found_where_logs_have_them(log, row):
    assert list(read_openai(log(row))) == [Row(NOON_NS, 12, 5)]


def test_what_failed_or_tells_no_usage_is_left_out(log):
    lines = [{"created": 1, "error": {"message": "no"}}, {"created": 1}, {"created": 1, "response": {"error": "x"}}]
    assert list(read_openai(log(*lines))) == [LeftOut("failed"), LeftOut("no usage"), LeftOut("failed")]


def test_conversations_are_kept(log):
    (row,) = read_openai(log({"created": 1, "session_id": "s", "usage": USAGE}))
    assert row.session == "s"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"usage": USAGE}, "1: no time: expected one of timestamp, start_time"),
        ({"created": "soon", "usage": USAGE}, "1: created 'soon': expected seconds since 1970 or ISO 8601"),
        ({"created": "2026-13-01 00:00:00", "usage": USAGE}, "1: created '2026-13-01 00:00:00': expected seconds"),
        ({"created": 10**19, "usage": USAGE}, "1: created 10000000000000000000: expected seconds"),
        ({"created": True, "usage": USAGE}, "1: created True"),
        ({"created": 1, "usage": {}}, "1: prompt_tokens None: expected a count of tokens"),
    ],
)
def test_a_row_without_time_or_counts_is_named(log, row, message):
    assert problem(read_openai(log(row))).startswith(message)


def test_the_gateways_records_are_what_clients_offered(log, made):
    answered = made.gateway(made.request(0, at_ms=500, tokens=5))
    left = made.gateway(made.request(1, at_ms=2000), outcome="client_gone", completion_tokens=3)
    silent = made.gateway(made.request(2), prompt_tokens=None, completion_tokens=None)
    cut = msgspec.structs.replace(silent, completion_tokens=3, usage_partial=True)
    refused = msgspec.structs.replace(silent, attempts=0)
    path = log(*(encode_line(record).rstrip() for record in (answered, left, silent, cut, refused)))
    first, second, *others = read_weir(path)
    assert (first[1:3], second[1:3]) == ((100, 5), (100, 3))
    assert first.at_ns == answered.received_unix_ns
    reasons = ["no usage", "cut before its usage was reported", "refused by the gateway"]
    assert others == list(map(LeftOut, reasons))


def test_a_gateway_record_that_is_none_is_named(log):
    assert problem(read_weir(log({}))).startswith("1: not a GatewayRecord: ")
