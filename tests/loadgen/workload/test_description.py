import msgspec
import numpy as np
import pytest
from scipy import stats

from loadgen.plan.making import make_schedule
from loadgen.plan.schedule_file import encode_schedule
from loadgen.plan.sources import Drawn, Part
from loadgen.workload.description import dump_workload, load_workload, parse_workload, shipped

TEXT = """
schema: weir.workload/1
name: two-steps
source: {dataset: d, citation: c, licence: l, file_sha256: f, rows: 100, command: weir fit}
arrivals: {bin_s: 10.0, rates_per_s: [5.0, 50.0], cv: 1.0, fit: null}
prompt:
  components: [{weight: 0.25, mu: 3.0, sigma: 0.2}, {weight: 0.75, mu: 6.0, sigma: 0.5}]
  min_tokens: 2
  max_tokens: 4000
  fit: null
output: {components: [{weight: 1.0, mu: 5.0, sigma: 0.4}], min_tokens: 1, max_tokens: 1000, fit: null}
coupling: {spearman: 0.6}
"""


@pytest.fixture
def workload():
    return parse_workload(TEXT)


def test_a_description_survives_its_file(workload):
    text = dump_workload(workload)
    assert text.startswith("# weir fit\nschema: weir.workload/1\n")
    assert parse_workload(text) == workload


def test_its_digest_is_that_of_the_content_and_not_of_the_layout(workload):
    assert parse_workload(dump_workload(workload)).digest() == workload.digest()
    assert msgspec.structs.replace(workload, name="other").digest() != workload.digest()


def test_traffic_follows_the_description(workload):
    rows = workload.draw(np.random.default_rng(1), start_s=0, duration_s=20, rate_scale=20)
    at, prompts, outputs = np.array(rows).T
    assert np.count_nonzero(at < 10) == pytest.approx(1000, abs=150)
    assert np.count_nonzero(at >= 10) == pytest.approx(10_000, abs=450)
    assert np.median(outputs) == pytest.approx(np.exp(5), rel=0.03)
    assert np.mean(prompts < 60) == pytest.approx(0.25, abs=0.02)
    assert stats.spearmanr(prompts, outputs).statistic == pytest.approx(0.6, abs=0.03)


def test_a_later_window_counts_from_its_own_start(workload):
    rows = workload.draw(np.random.default_rng(1), start_s=10, duration_s=10, rate_scale=1)
    assert len(rows) == pytest.approx(500, abs=100)
    assert rows[0].at_s < 1
    assert rows[-1].at_s < 10


def test_a_window_beyond_the_curve_is_refused(workload):
    with pytest.raises(ValueError, match=r"two-steps describes 20 s: start_s \+ duration_s is 25"):
        workload.draw(np.random.default_rng(1), start_s=5, duration_s=20, rate_scale=1)


def test_equal_seeds_give_equal_schedules(workload):
    made = [encode_schedule(make_schedule(Drawn(workload), Part(seed=seed, duration_s=20))) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: two-steps", "name: two-steps\nextra: 1", "unknown field `extra`"),
        ("cv: 1.0", "cv: 1.0, skew: 2", r"unknown field `skew` - at `\$\.arrivals`"),
        ("schema: weir.workload/1", "schema: weir.workload/2", r"weir\.workload/2.*\$\.schema"),
        ("cv: 1.0, ", "", r"missing required field `cv` - at `\$\.arrivals`"),
        ("cv: 1.0", "cv: high", r"Expected `float`, got `str` - at `\$\.arrivals\.cv`"),
        ("cv: 1.0", "cv: -1", r"cv is -1\.0: give a number of at least 0"),
        ("[5.0, 50.0]", "[5.0, -50.0]", r"rates_per_s has -50\.0: give numbers of at least 0"),
        ("[5.0, 50.0]", "[0, 0]", "no rate above 0"),
        ("[5.0, 50.0]", "[]", "no rate above 0"),
        ("bin_s: 10.0", "bin_s: 0", r"bin_s is 0\.0: give a number above 0"),
        ("weight: 0.25", "weight: 0.5", r"weights of components sum to 1\.25.* - at `\$\.prompt`"),
        ("weight: 0.25", "weight: -0.25", r"weight is -0\.25: give a number above 0"),
        ("sigma: 0.4", "sigma: 0", r"sigma is 0\.0"),
        ("min_tokens: 2", "min_tokens: 0", r"limits are 0\.\.4000"),
        ("max_tokens: 1000", "max_tokens: 0", r"limits are 1\.\.0"),
        ("spearman: 0.6", "spearman: 1.2", r"spearman is 1\.2"),
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


def test_workloads_come_with_the_package():
    path = shipped("azure-conv-2023")
    assert path is not None
    assert load_workload(path).name == "azure-conv-2023"
    assert shipped("no-such") is None
