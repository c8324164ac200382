from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy import stats

from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.making import make_schedule
from loadgen.plan.schedule_file import encode_schedule
from loadgen.plan.sources import Drawn, Part
from loadgen.workload.arrivals import dispersion
from loadgen.workload.description import dump_workload, load_workload, parse_workload, shipped
from loadgen.workload.sharing import hit_ratio, reuse

TEXT = """
schema: weir.workload/2
name: two-steps
source: {dataset: d, citation: c, licence: l, file_sha256: f, rows: 100, command: weir fit}
arrivals:
  duration_s: 20.0
  rates: [{start_s: 0.0, per_s: 5.0}, {start_s: 10.0, per_s: 50.0}]
  residual: {process: gamma, cv: 1.0}
  fit: null
lengths:
  windows:
  - start_s: 0.0
    prompt: {law: table, min_tokens: 2, max_tokens: 30, shares: [0.0, 1.0], tokens: [2, 30]}
    output: {law: constant, min_tokens: 9, max_tokens: 9}
    spearman: 0.0
  - start_s: 10.0
    prompt: {law: lognormal_mixture, min_tokens: 2, max_tokens: 4000, components: [{weight: 1.0, mu: 6.0, sigma: 0.5}]}
    output: {law: gamma, min_tokens: 1, max_tokens: 1000, shape: 4.0, scale: 30.0}
    spearman: 0.6
  prompt_fit: null
  output_fit: null
sharing: null
"""
SHARING = (
    "sharing: {block_tokens: 100, common_blocks: 1, common_share: 1.0, continue_share: [0.0], reused: [0.0, 0.0],"
    " delay_s: [0.0, 0.0], fit: null}"
)


@pytest.fixture
def workload():
    return parse_workload(TEXT)


def test_a_description_survives_its_file(workload):
    text = dump_workload(workload)
    assert text.startswith("# weir fit\nschema: weir.workload/2\n")
    assert parse_workload(text) == workload


def test_one_that_was_written_by_hand_needs_no_source(workload):
    by_hand = msgspec.structs.replace(workload, source=None)
    assert parse_workload(dump_workload(by_hand)) == by_hand
    assert by_hand.verdicts() == {}


def test_its_digest_is_that_of_the_content_and_not_of_the_layout(workload):
    assert parse_workload(dump_workload(workload)).digest() == workload.digest()
    assert msgspec.structs.replace(workload, name="other").digest() != workload.digest()


def test_traffic_follows_the_description(workload):
    drawn = workload.draw(np.random.default_rng(1), start_s=0, duration_s=20, rate_scale=20)
    early = drawn.at_s < 10
    assert np.count_nonzero(early) == pytest.approx(1000, abs=150)
    assert np.count_nonzero(~early) == pytest.approx(10_000, abs=450)
    assert drawn.prompt_tokens[early].max() <= 30
    assert set(drawn.output_tokens[early].tolist()) == {9}
    assert np.median(drawn.prompt_tokens[~early]) == pytest.approx(np.exp(6), rel=0.03)
    assert drawn.output_tokens[~early].mean() == pytest.approx(120, rel=0.03)
    ranks = stats.spearmanr(drawn.prompt_tokens[~early], drawn.output_tokens[~early])
    assert ranks.statistic == pytest.approx(0.6, abs=0.03)
    assert (drawn.segment_ids == -1).all()


def test_prompts_share_text_where_that_is_said():
    workload = parse_workload(TEXT.replace("sharing: null", SHARING))
    drawn = workload.draw(np.random.default_rng(1), start_s=0, duration_s=20, rate_scale=1)
    first = drawn.segment_ids[drawn.segment_offsets[:-1]]
    # What is shorter than a block is text of its own.
    assert set(first[drawn.prompt_tokens >= 100].tolist()) == {0}
    assert 0 not in first[drawn.prompt_tokens < 100]


def test_a_later_window_counts_from_its_own_start(workload):
    drawn = workload.draw(np.random.default_rng(1), start_s=10, duration_s=10, rate_scale=1)
    assert len(drawn) == pytest.approx(500, abs=100)
    assert drawn.at_s[0] >= 0 < 1
    assert drawn.at_s[-1] < 10
    assert drawn.prompt_tokens.mean() > 100, "its lengths are those of the later window"


def test_a_window_beyond_the_rates_is_refused(workload):
    with pytest.raises(ValueError, match=r"two-steps describes 20 s: start_s \+ duration_s is 25"):
        workload.draw(np.random.default_rng(1), start_s=5, duration_s=20, rate_scale=1)


def test_equal_seeds_give_equal_schedules(workload):
    made = [encode_schedule(make_schedule(Drawn(workload), Part(seed=seed, duration_s=20))) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("residual", "clustered"),
    [
        ("{process: weibull, shape: 0.5}", True),
        ("{process: table, gaps: [0.0, 0.0, 0.0, 0.0, 8.0]}", True),
        ("{process: mmpp, quiet_rate: 0.1, busy_rate: 1.9, quiet_stay: 20.0, busy_stay: 20.0}", True),
        ("{process: gamma, cv: 0.0}", False),
    ],
)
def test_every_residual_keeps_the_rate(residual, clustered):
    text = TEXT.replace("{process: gamma, cv: 1.0}", residual).replace("duration_s: 20.0", "duration_s: 2010.0")
    workload = parse_workload(text)
    drawn = workload.draw(np.random.default_rng(1), start_s=10, duration_s=2000, rate_scale=1)
    assert len(drawn) == pytest.approx(100_000, rel=0.05)
    assert (dispersion(drawn.at_s, 1.0, 2000.0) > 2) is clustered


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: two-steps", "name: two-steps\nextra: 1", "unknown field `extra`"),
        ("cv: 1.0", "cv: 1.0, skew: 2", r"unknown field `skew` - at `\$\.arrivals\.residual`"),
        ("schema: weir.workload/2", "schema: weir.workload/1", r"weir\.workload/1.*\$\.schema"),
        (", cv: 1.0", "", r"missing required field `cv` - at `\$\.arrivals\.residual`"),
        ("cv: 1.0", "cv: high", r"Expected `float`, got `str` - at `\$\.arrivals\.residual\.cv`"),
        ("cv: 1.0", "cv: -1", r"cv is -1\.0: give a number of at least 0"),
        ("process: gamma, cv: 1.0", "process: weibull, shape: 0", r"shape is 0\.0"),
        ("process: gamma, cv: 1.0", "process: table, gaps: [1.0]", "gaps are"),
        ("process: gamma, cv: 1.0", "process: table, gaps: [1.0, 3.0]", "the mean of gaps is 2"),
        (
            "process: gamma, cv: 1.0",
            "process: mmpp, quiet_rate: 2.0, busy_rate: 1.0, quiet_stay: 1.0, busy_stay: 1.0",
            "need 0 <= quiet_rate < busy_rate",
        ),
        (
            "process: gamma, cv: 1.0",
            "process: mmpp, quiet_rate: 1.0, busy_rate: 3.0, quiet_stay: 1.0, busy_stay: 1.0",
            "weighed by their stays, is 2: scale it to 1",
        ),
        ("per_s: 50.0", "per_s: -50.0", r"per_s is -50\.0: give a number of at least 0"),
        ("start_s: 10.0, per_s", "start_s: 0.0, per_s", r"rates start at \[0\.0, 0\.0\]"),
        ("start_s: 10.0, per_s", "start_s: 30.0, per_s", "before duration_s"),
        ("per_s: 5.0}, {start_s: 10.0, per_s: 50.0}", "per_s: 0.0}", "no rate is above 0"),
        ("duration_s: 20.0", "duration_s: 0", r"duration_s is 0\.0: give a number above 0"),
        ("weight: 1.0", "weight: 0.5", r"weights of components sum to 0\.5.* - at `\$\.lengths\.windows\[1\]\.prompt`"),
        ("  - start_s: 10.0\n", "  - start_s: 0.0\n", r"windows start at \[0\.0, 0\.0\]"),
        ("spearman: 0.6", "spearman: 1.2", r"spearman is 1\.2"),
        ("sharing: null", SHARING.replace("common_share: 1.0", "common_share: 2"), "common_share is"),
        ("name: two-steps", "name: [", "not YAML"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_what_to_do(old, new, message):
    assert old in TEXT
    with pytest.raises(ValueError, match=message):
        parse_workload(TEXT.replace(old, new, 1))


def test_a_bad_file_is_named(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text("schema: 1")
    with pytest.raises(ValueError, match=r"w\.yaml: "):
        load_workload(path)


MIXED = """
schema: weir.workload/2
name: mixed
arrivals:
  duration_s: 2000
  rates: [{start_s: 0, per_s: 5}]
  residual: {process: gamma, cv: 1}
  fit: null
kinds:
- kind: single
  share: 3
  system_prompts: {count: 1, tokens: 900, zipf: 0}
  prompt_tokens: 100
  output_tokens: 1
- kind: conversation
  share: 1
  system_prompts: null
  turns: {mean: 4, most: 20}
  think_s: {mean: 10, cv: 1}
  user_tokens: 30
  output_tokens: 2
"""


def mixed(text=MIXED, seed=1, *, start_s=0, duration_s=1000, rate_scale=1):
    return parse_workload(text).draw(
        np.random.default_rng(seed), start_s=start_s, duration_s=duration_s, rate_scale=rate_scale
    )


def test_sessions_of_each_kind_come_as_often_as_is_said():
    drawn = mixed()
    singles, sessions = np.count_nonzero(drawn.output_tokens == 1), len(set(drawn.session.tolist()) - {-1})
    assert singles == pytest.approx(3750, abs=5 * 3750**0.5)
    # A quarter of conversations ends with the first question, and is no session then.
    assert sessions == pytest.approx(0.75 * 1250, abs=5 * 940**0.5)
    assert np.all(np.diff(drawn.at_s) >= 0)
    assert drawn.at_s[0] >= 0
    assert drawn.at_s[-1] < 1000


def test_twice_the_rate_is_twice_the_sessions():
    assert len(mixed(rate_scale=2)) == pytest.approx(2 * len(mixed()), rel=0.1)


def test_a_later_part_has_conversations_that_were_under_way():
    def turns_within(start_s, until_s):
        drawn = mixed(start_s=start_s)
        return np.count_nonzero((drawn.output_tokens == 2) & (drawn.at_s < until_s))

    steady = 1.25 * 4 * 20
    assert turns_within(500, 20) == pytest.approx(steady, abs=5 * steady**0.5 * 2)
    assert turns_within(0, 20) < 0.75 * steady


def test_what_is_shared_is_what_is_said():
    singles = MIXED[: MIXED.index("- kind: conversation")]
    assert hit_ratio(mixed(singles)) == pytest.approx(0.9, abs=0.001)
    assert hit_ratio(mixed(singles.replace("count: 1", "count: 500"))) == pytest.approx(
        0.9 * (1 - 500 / 5000), abs=0.01
    )
    conversations = MIXED.replace(singles[singles.index("- kind: single") :], "")
    drawn = mixed(conversations)
    later = drawn.prompt_tokens > 30
    before = drawn.prompt_tokens[later] - 32
    shared, since_s = reuse(drawn)
    assert shared[later].tolist() == before.tolist()
    assert not shared[~later].any()
    assert np.median(since_s[later]) == pytest.approx(10 * np.log(2), rel=0.1)


def test_kinds_have_no_text_in_common_but_their_own():
    """Both have the same system prompt by their figures, and are different texts."""
    kind = MIXED[MIXED.index("- kind: single") : MIXED.index("- kind: conversation")]
    drawn = mixed(MIXED[: MIXED.index("- kind: conversation")] + kind.replace("output_tokens: 1", "output_tokens: 7"))
    first = drawn.segment_ids[drawn.segment_offsets[:-1]]
    assert len(set(first[drawn.output_tokens == 1].tolist())) == len(set(first[drawn.output_tokens == 7].tolist())) == 1
    assert len(set(first.tolist())) == 2


def test_a_mixed_workload_makes_the_same_schedule_again():
    made = [
        encode_schedule(make_schedule(Drawn(parse_workload(MIXED)), Part(seed=seed, duration_s=200)))
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1] != made[2]
    assert parse_workload(MIXED).digest() == parse_workload(MIXED + "# a remark\n").digest()


def test_turns_that_come_by_the_clock_are_no_fault_of_the_arrivals():
    steady = parse_workload(MIXED.replace("think_s: {mean: 10, cv: 1}", "think_s: {mean: 1, cv: 0}"))
    schedule = make_schedule(Drawn(steady), Part(seed=1, duration_s=500))
    assert not any(check.judged for check in schedule.header.self_test)
    alone = parse_workload(MIXED[: MIXED.index("- kind: conversation")])
    assert any(check.judged for check in make_schedule(Drawn(alone), Part(seed=1, duration_s=500)).header.self_test)


def test_a_mixed_workload_takes_times_from_elsewhere():
    part = Part(seed=1, duration_s=100)
    schedule = make_schedule(Drawn(parse_workload(MIXED)), part, parse_arrivals("constant:rate=20"))
    assert len(schedule) == 2000
    for session in set(schedule.session.tolist()) - {-1}:
        assert np.all(np.diff(schedule.prompt_tokens[schedule.session == session]) == 32), "turns keep their order"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: single", "kind: chat", r"Invalid value 'chat' - at `\$\.kinds\[0\]\.kind`"),
        ("turns: {mean: 4, most: 20}", "turns: {mean: 40, most: 20}", r"mean is 40, most is 20.*kinds\[1\]\.turns"),
        ("  think_s: {mean: 10, cv: 1}\n", "", "missing required field `think_s`"),
        ("user_tokens: 30", "user_tokens: many", r"kinds\[1\]\.user_tokens"),
        ("share: 3", "share: 0", r"share is 0\.0: give a number above 0"),
        ("name: mixed", "name: mixed\nsharing: null", "unknown field `sharing`"),
    ],
)
def test_a_kind_that_is_wrong_says_where_and_what_to_do(old, new, message):
    assert old in MIXED
    with pytest.raises(ValueError, match=message):
        parse_workload(MIXED.replace(old, new, 1))


def test_a_mix_of_nothing_is_refused():
    with pytest.raises(ValueError, match="kinds are none: give at least one of single, conversation, rag, agent"):
        parse_workload(MIXED[: MIXED.index("kinds:")] + "kinds: []")


def test_a_mix_beyond_its_rates_is_refused():
    with pytest.raises(ValueError, match=r"mixed describes 2000 s: start_s \+ duration_s is 2500"):
        mixed(start_s=1500)


def test_the_example_of_the_documentation_is_the_one_that_comes_along():
    formats = (Path(__file__).parents[3] / "docs/formats.md").read_text()
    assert f"```yaml\n{shipped('assistants').read_text()}```" in formats


@pytest.mark.parametrize("name", ["azure-conv-2023", "support-chat", "assistants"])
def test_workloads_come_with_the_package(name):
    path = shipped(name)
    assert path is not None
    workload = load_workload(path)
    assert workload.name == name
    assert len(workload.draw(np.random.default_rng(1), start_s=0, duration_s=600, rate_scale=1)) > 500
    assert shipped("no-such") is None
