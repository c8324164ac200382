"""What a configuration amounts to, and what an operator is told about one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config_file import dotted, load, parse
from gateway.errors import ConfigError

GOOD = """\
pools:
  a:
    engine: vllm
    endpoints:
      - url: http://127.0.0.1:8000
routes:
  - model: m
    split: {a: 1}
"""


def problems_of(text: str) -> list[str]:
    try:
        parse(text, "weir.yaml")
    except ConfigError as refused:
        return refused.problems
    return []


def with_pool(setting: str) -> str:
    return GOOD.replace("engine: vllm", f"engine: vllm\n    {setting}")


def with_url(url: str) -> str:
    return GOOD.replace("http://127.0.0.1:8000", url)


def test_the_smallest_configuration_gets_every_default() -> None:
    config = parse(GOOD, "weir.yaml").config
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8080)
    pool = config.pools["a"]
    assert (pool.engine, pool.policy, pool.health.unhealthy_after) == ("vllm", "least_in_flight", 2)
    assert config.routes[0].split == {"a": 1}
    assert config.records.path is None


def test_effective_settings_are_complete_and_say_where_each_came_from() -> None:
    rows = parse(GOOD + "drain:\n  settle_s: 3\n", "weir.yaml").effective()
    origins = {key: (value, origin) for key, value, origin in rows}
    assert len(origins) == len(rows)
    assert origins["pools.a.endpoints[0].url"] == ("http://127.0.0.1:8000", "weir.yaml:5")
    assert origins["pools.a.endpoints[0].name"] == (None, "default")
    assert origins["routes[0].split.a"] == (1, "weir.yaml:8")
    assert origins["drain.settle_s"] == (3.0, "weir.yaml:10")
    assert origins["drain.timeout_s"] == (30.0, "default")
    assert [key for key, _, _ in rows[:3]] == ["listen.host", "listen.port", "listen.keep_alive_s"]


def test_merged_and_aliased_values_keep_the_line_they_were_written_on() -> None:
    text = """\
pools:
  a: &usual
    engine: vllm
    timeouts: &patient {total_s: 7200}
    endpoints:
      - url: http://10.0.0.1:8000
  b:
    <<: *usual
    engine: sglang
  c: *usual
  d:
    <<: {engine: openai}
    timeouts: *patient
    endpoints: [{url: http://10.0.0.2}]
routes:
  - model: m
    split: &all {a: 1, b: 2}
  - model: n
    split: {<<: *all, b: 0}
"""
    loaded = parse(text, "f")
    origins = {key: (value, origin) for key, value, origin in loaded.effective()}
    assert origins["pools.b.engine"] == ("sglang", "f:9")
    assert origins["pools.b.endpoints[0].url"] == ("http://10.0.0.1:8000", "f:6")
    assert origins["pools.c.engine"] == ("vllm", "f:3")
    assert origins["pools.d.engine"] == ("openai", "f:12")
    assert origins["pools.d.timeouts.total_s"] == (7200.0, "f:4")
    assert (origins["routes[1].split.a"], origins["routes[1].split.b"]) == ((1, "f:17"), (0, "f:19"))
    assert problems_of(text.replace("{a: 1, b: 2}", "{a: 1, x: 2}")) == [
        "weir.yaml:17: routes[0].split.x: no such pool; the pools are: a, b, c, d",
        "weir.yaml:17: routes[1].split.x: no such pool; the pools are: a, b, c, d",
    ]


NUMBER = "must be a plain number like 2.5, without unit or quotes"
WHOLE = "must be a whole number, without unit or quotes"
MAPPING = "must be a mapping (`key: value`)"
TEXT = "must be text: put it in quotes"
NAME = "a name is 1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first"
NOT_URL = "not an engine URL; write it like http://10.0.0.5:8000"
BARE_URL = "an engine URL has no query, fragment or credentials; remove them"
PORT = "the port must be between 1 and 65535"


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("listen: 8080", f"listen: 8080: {MAPPING}"),
        ("listen:", f"listen: has no value; it {MAPPING}"),
        ("listen: {port: '8080'}", f"listen.port: '8080': {WHOLE}"),
        ("listen: {port: 8080.5}", f"listen.port: 8080.5: {WHOLE}"),
        ("listen: {port: true}", f"listen.port: true: {WHOLE}"),
        ("listen: {port: [1]}", f"listen.port: {WHOLE}"),
        ("listen: {port: }", f"listen.port: has no value; it {WHOLE}"),
        ("listen: {port: 65536}", "listen.port: 65536: must be at most 65535"),
        ("listen: {port: -1}", "listen.port: -1: must be at least 0"),
        ("listen: {host: 10}", f"listen.host: 10: {TEXT}"),
        ("listen: {host: a..b}", "listen.host: 'a..b': not a host name or an IP address"),
        ("listen: {host: ''}", "listen.host: '': not a host name or an IP address"),
        ("listen: {keep_alive_s: 30s}", f"listen.keep_alive_s: '30s': {NUMBER}"),
        ("listen: {keep_alive_s: yes}", f"listen.keep_alive_s: true: {NUMBER}"),
        ("listen: {keep_alive_s: 0}", "listen.keep_alive_s: 0: must be more than 0"),
        ("listen: {keep_alive_s: .nan}", "listen.keep_alive_s: nan: must be at most 86400"),
        ("listen: {prot: 1}", "listen.prot: unknown key; known here: host, port, keep_alive_s"),
        ("limits: {body_bytes: 64M}", f"limits.body_bytes: '64M': {WHOLE}"),
        ("records: {path: 2026-01-31}", f"records.path: {TEXT}"),
        ("trace: {sample_ratio: 1e-3}", f"trace.sample_ratio: '1e-3': {NUMBER}"),
        ("trace: {sample_ratio: 2}", "trace.sample_ratio: 2: must be at most 1"),
        ("drain: {settle_s: -1}", "drain.settle_s: -1: must be at least 0"),
        ("x: 1", "x: unknown key; known here: listen, limits, pools, routes, records, trace, usage, drain"),
        ('"a\\nb": 1', "'a\\nb': unknown key; known here: listen, limits, pools, routes, records, trace, usage, drain"),
        ("  - model: m\n    split: {a: 1}", "routes[1].model: 'm': has a route already; merge their splits"),
        (
            "  - model: n\n    split: {a: 0}",
            "routes[1]: every weight of the split is 0; give at least one pool a weight",
        ),
        ("  - model: ''\n    split: {a: 1}", "routes[1].model: '': must not be empty"),
        ("  - n", f"routes[1]: 'n': {MAPPING}"),
        ("pools: {}", "pools: given twice; the earlier one would be ignored, remove or rename one"),
        ("8080: 1", "configuration: has a key that is not text to YAML; put it in quotes"),
        ("? [a]\n: 1", "configuration: has a key that is not text to YAML; put it in quotes"),
        (
            "listen: {port: 1, host: a, port: 2}",
            "listen.port: given twice; the earlier one would be ignored, remove or rename one",
        ),
    ],
)
def test_one_line_for_what_is_wrong_behind_line_eight(section: str, complaint: str) -> None:
    assert problems_of(f"{GOOD}{section}\n") == [f"weir.yaml:9: {complaint}"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD.replace("vllm", "vlm"), "3: pools.a.engine: 'vlm': must be 'vllm', 'sglang' or 'openai'"),
        (GOOD.replace("    engine: vllm\n", ""), "2: pools.a.engine: is required"),
        (GOOD.replace("{a: 1}", "{b: 1}"), "8: routes[0].split.b: no such pool; the pools are: a"),
        (GOOD.replace("{a: 1}", "[a]"), f"8: routes[0].split: {MAPPING}"),
        (GOOD.replace("{a: 1}", "{}"), "8: routes[0].split: is empty; give at least one entry"),
        (GOOD.replace("{a: 1}", "{a: 0.5}"), f"8: routes[0].split.a: 0.5: {WHOLE}"),
        (GOOD.replace("  a:\n", "  a b:\n"), f"2: pools.a b: 'a b': {NAME}"),
        (GOOD.replace("  a:\n", f"  {'a' * 64}:\n"), f"2: pools.{'a' * 64}: '{'a' * 64}': {NAME}"),
        (GOOD.replace("  a:\n", "  - a:\n"), f"1: pools: {MAPPING}"),
        (GOOD.partition("routes")[0], "1: routes: is required"),
        (GOOD.partition("routes")[0] + "routes: []", "6: routes: is empty; give at least one entry"),
        (GOOD.partition("routes")[0] + "routes: {m: a}", "6: routes: must be a list (`- entry`)"),
        (GOOD.replace("url: ", "- "), f"5: pools.a.endpoints[0]: {MAPPING}"),
        (with_url("8000"), f"5: pools.a.endpoints[0].url: 8000: {TEXT}"),
        (with_url("ftp://h"), f"5: pools.a.endpoints[0].url: 'ftp://h': {NOT_URL}"),
        (with_url("10.0.0.5:8000"), f"5: pools.a.endpoints[0].url: '10.0.0.5:8000': {NOT_URL}"),
        (with_url("http:///x"), f"5: pools.a.endpoints[0].url: 'http:///x': {NOT_URL}"),
        (with_url("http://h/a b"), f"5: pools.a.endpoints[0].url: 'http://h/a b': {NOT_URL}"),
        (with_url("http://h/é"), f"5: pools.a.endpoints[0].url: 'http://h/é': {NOT_URL}"),
        (with_url('"http://h/\\r\\nx: y"'), f"5: pools.a.endpoints[0].url: 'http://h/\\r\\nx: y': {NOT_URL}"),
        (with_url("http://h?a=1"), f"5: pools.a.endpoints[0].url: 'http://h?a=1': {BARE_URL}"),
        (with_url("http://h/x#y"), f"5: pools.a.endpoints[0].url: 'http://h/x#y': {BARE_URL}"),
        (with_url("http://:secret@h"), f"5: pools.a.endpoints[0].url: 'http://:secret@h': {BARE_URL}"),
        (
            with_url("http://h/v1/"),
            "5: pools.a.endpoints[0].url: 'http://h/v1/': the gateway adds /v1 itself; remove it from the URL",
        ),
        (with_url("http://h:0"), f"5: pools.a.endpoints[0].url: 'http://h:0': {PORT}"),
        (with_url("http://h:70000"), f"5: pools.a.endpoints[0].url: 'http://h:70000': {PORT}"),
        (with_url("http://h:x"), f"5: pools.a.endpoints[0].url: 'http://h:x': {PORT}"),
        (with_url("http://a..b"), "5: pools.a.endpoints[0].url: 'http://a..b': not a host name or an IP address"),
        (
            with_url("http://h\n      - url: http://h/"),
            "6: pools.a.endpoints[1].url: 'http://h': this pool has the endpoint already; remove one",
        ),
        (
            with_url("http://h\n        name: a-1\n      - url: http://g"),
            "7: pools.a.endpoints[1].name: 'a-1': another endpoint is called so; give each its own name",
        ),
        (with_pool("policy: random"), "4: pools.a.policy: 'random': must be 'round_robin' or 'least_in_flight'"),
        (
            with_pool("health: {timeout: 2}"),
            "4: pools.a.health.timeout: unknown key; known here: interval_s, timeout_s, unhealthy_after, healthy_after",
        ),
        (
            with_pool("timeouts: {total_s: 100}"),
            (
                "4: pools.a.timeouts: first_byte_s is 300 but total_s is only 100, so it can never expire; "
                "lower first_byte_s or raise total_s"
            ),
        ),
    ],
)
def test_one_line_for_what_is_wrong_in_pools_and_routes(text: str, complaint: str) -> None:
    assert problems_of(text) == [f"weir.yaml:{complaint}"]


def test_keys_of_list_entries_are_known_too() -> None:
    assert problems_of(GOOD.replace("url:", "ulr:")) == [
        "weir.yaml:5: pools.a.endpoints[0].url: is required",
        "weir.yaml:5: pools.a.endpoints[0].ulr: unknown key; known here: url, name",
    ]


def test_every_problem_is_told_in_the_order_of_the_file() -> None:
    text = GOOD.replace("vllm", "x").replace("a: 1", "a: -1") + "listen: {port: x}\n"
    assert [line.split(":")[1] for line in problems_of(text)] == ["3", "8", "9"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "weir.yaml: must be a mapping with at least `pools` and `routes`"),
        ("- a", "weir.yaml: must be a mapping with at least `pools` and `routes`"),
        (
            "a:\n\tb: 1",
            (
                "weir.yaml:2: not valid YAML: while scanning for the next token, "
                "found character '\\t' that cannot start any token"
            ),
        ),
        (
            f"{GOOD}---\n{GOOD}",
            "weir.yaml:9: not valid YAML: expected a single document in the stream, but found another document",
        ),
        ("a: \x00", "weir.yaml: not valid YAML: unacceptable character #x0000: special characters are not allowed"),
        ("a: 2026-13-01", "weir.yaml: not valid YAML: month must be in 1..12"),
        (
            "a: !!python/name:os.system",
            (
                "weir.yaml:1: not valid YAML: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/name:os.system'"
            ),
        ),
        ("a: &a [*a]", "weir.yaml: nested too deeply, or an alias (*) stands inside its own anchor (&)"),
    ],
)
def test_what_is_no_mapping_or_no_yaml_is_one_line(text: str, complaint: str) -> None:
    problems = problems_of(text)
    assert len(problems) == 1
    assert problems[0].startswith(complaint)
    assert "\n" not in problems[0]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "weir.yaml"
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.problems == [f"{file}: cannot be read: No such file or directory"]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.problems == [f"{file}: cannot be read: not UTF-8 text"]
    file.write_text(GOOD, encoding="utf-8")
    assert load(file).config == parse(GOOD, "elsewhere").config


def test_dotted_paths() -> None:
    assert dotted(("routes", 0, "model")) == "routes[0].model"
    assert dotted(()) == "configuration"


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(), st.binary(max_size=3)
)
KEYS = st.sampled_from(["url", "name", "a", "engine", "path", "port", "timeouts", "total_s"]) | st.text(max_size=4)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
PLACES = [
    ("listen",),
    ("listen", "host"),
    ("listen", "port"),
    ("listen", "keep_alive_s"),
    ("limits", "in_flight"),
    ("pools",),
    ("pools", "a"),
    ("pools", "a", "engine"),
    ("pools", "a", "endpoints"),
    ("pools", "a", "health"),
    ("pools", "a", "timeouts"),
    ("pools", "a", "endpoints", 0),
    ("pools", "a", "endpoints", 0, "url"),
    ("pools", "a", "endpoints", 0, "name"),
    ("routes",),
    ("routes", 0),
    ("routes", 0, "split"),
    ("routes", 0, "split", "a"),
    ("routes", 0, "model"),
    ("records", "path"),
    ("trace", "sample_ratio"),
    ("drain", "settle_s"),
    ("zzz",),
]


@given(place=st.sampled_from(PLACES), value=TREES)
def test_whatever_stands_anywhere_is_taken_or_explained_in_plain_words(
    place: tuple[str | int, ...], value: object
) -> None:
    tree = yaml.safe_load(GOOD) | {"listen": {}, "limits": {}, "records": {}, "trace": {}, "drain": {}}
    section = tree
    for step in place[:-1]:
        section = section[step]
    section[place[-1]] = value
    for problem in problems_of(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)):
        assert problem.startswith("weir.yaml:")
        assert len(problem.splitlines()) == 1
        for jargon in ("Input should", "valid dictionary", "tuple", "instance of", "pydantic", "should match"):
            assert jargon not in problem
