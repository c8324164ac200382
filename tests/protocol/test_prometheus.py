"""The text format against literal lines, against prometheus_client, and on scrapes of real engines."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from protocol.prometheus import Sample, parse

CAPTURES = Path(__file__).parents[3] / "shared/reference/captures"


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("up 1", Sample(name="up", labels={}, value=1)),
        ("vllm:up{} 1", Sample(name="vllm:up", labels={}, value=1)),
        ("\tup   1.5e+09\t 1395066363000 ", Sample(name="up", labels={}, value=1.5e9)),
        ("up -Inf\r", Sample(name="up", labels={}, value=-math.inf)),
        ('b{le="+Inf"} +Inf', Sample(name="b", labels={"le": "+Inf"}, value=math.inf)),
        ('b{ a = "x" , c="y" , } 2', Sample(name="b", labels={"a": "x", "c": "y"}, value=2)),
        ('b{a="x"}2', Sample(name="b", labels={"a": "x"}, value=2)),
        (
            r'b{p="C:\\d\"q\" \n}, \z",e=""} 0',
            Sample(name="b", labels={"p": 'C:\\d"q" \n}, \\z', "e": ""}, value=0),
        ),
        ('b{a="\u2028\x85"} 0', Sample(name="b", labels={"a": "\u2028\x85"}, value=0)),
        (
            'b_bucket{le="1"} 17 # {trace_id="ab"} 0.67 1520879607.789',
            Sample(name="b_bucket", labels={"le": "1"}, value=17),
        ),
        ("b_total 17 1.5 # {} 0.67", Sample(name="b_total", labels={}, value=17)),
    ],
)
def test_one_line(line: str, sample: Sample) -> None:
    assert parse(line) == [sample]


def test_comments_blank_lines_and_the_eof_mark_are_skipped() -> None:
    text = "# HELP a b\n# TYPE a counter\n\na 1\n#comment\n  \n# UNIT a x\na_created 2\n# EOF\n"
    assert [(sample.name, sample.value) for sample in parse(text)] == [("a", 1), ("a_created", 2)]
    assert parse("") == []


def test_nan_is_a_value() -> None:
    [sample] = parse("a NaN")
    assert math.isnan(sample.value)


@pytest.mark.parametrize(
    "line",
    [
        "up",
        "1up 1",
        "up one",
        "up 1.2.3",
        "up 1_000",
        "up 1 2 3",
        "up 1 # no exemplar",
        "up{a} 1",
        'up{a="1"b="2"} 1',
        'up{a="1",,b="2"} 1',
        'up{a="1} 1',
        'up{a="1"} ',
        'up{a="1",a="2"} 1',
        'up{1a="1"} 1',
        "<html>",
    ],
)
def test_a_malformed_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 3: "):
        parse(f"# fine\nfine 1\n{line}\nfine 2\n")


@given(
    labels=st.dictionaries(
        st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True),
        st.text(st.characters(codec="utf-8"), max_size=8),
        max_size=3,
    ),
    value=st.floats(allow_nan=False),
)
def test_what_prometheus_client_writes_is_read_back(labels: dict[str, str], value: float) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("load", "Load.", list(labels), registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(value)
    assert parse(generate_latest(registry).decode()) == [Sample(name="load", labels=labels, value=value)]


@pytest.mark.parametrize("scrape", ["vllm_metrics", "sglang_metrics_nopriority", "llamacpp_metrics"])
def test_scrapes_of_real_engines_agree_with_prometheus_client(scrape: str) -> None:
    path = CAPTURES / f"{scrape}.txt"
    if not path.exists():
        pytest.skip(f"no captures of real engines at {CAPTURES}")
    text = path.read_text()
    # Without its comments the reference parser keeps every name as it stands.
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    theirs = [sample for family in text_string_to_metric_families(bare) for sample in family.samples]
    ours = parse(text)
    assert len(ours) > 10
    assert [(s.name, s.labels) for s in ours] == [(s.name, s.labels) for s in theirs]
    assert [s.value for s in ours] == pytest.approx([s.value for s in theirs], rel=0, abs=0, nan_ok=True)
