import pytest

from loadgen.preflight.settings import compare, read_settings

FILE = """
# The model.
model: m
# So many
# at once.
max-num-seqs: 256
enable-prefix-caching: true
scheduling-policy: priority
port: 8000
mem-fraction-static: 0.8
"""


def test_the_comment_above_a_setting_is_its_reason() -> None:
    settings = {setting.name: setting for setting in read_settings(FILE)}
    assert settings["max-num-seqs"].reason == "So many at once."
    assert settings["enable-prefix-caching"].reason == ""
    assert settings["enable-prefix-caching"].value is True


def test_each_setting_holds_differs_cannot_be_seen_or_is_unknown() -> None:
    effective = {"model": "m", "max_num_seqs": "128", "enable_prefix_caching": "True"}
    effective["scheduler_config.policy"] = "fcfs"
    verdicts = {verdict.setting.name: verdict for verdict in compare(read_settings(FILE), effective, {"--port"})}
    assert {name: verdict.result for name, verdict in verdicts.items()} == {
        "model": "ok",
        "max-num-seqs": "differs",
        "enable-prefix-caching": "ok",
        "scheduling-policy": "differs",
        "port": "not visible",
        "mem-fraction-static": "unknown",
    }
    assert verdicts["max-num-seqs"].fix == "start the engine with --max-num-seqs 256, or change the file"


@pytest.mark.parametrize(("wanted", "found"), [("0.90", 0.9), ("true", "True"), ("8", 8)])
def test_spelling_makes_no_difference(wanted: str, found: object) -> None:
    (verdict,) = compare(read_settings(f"a-b: {wanted}"), {"a_b": found}, ())
    assert verdict.result == "ok"


def test_a_switch_is_asked_for_by_its_name() -> None:
    on, off = compare(read_settings("a: true\nb: false"), {"a": False, "b": True}, ())
    assert on.fix.startswith("start the engine with --a,")
    assert off.fix.startswith("start the engine without --b,")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [1", "not YAML"), ("- a", "expected settings"), ("a: [1]", r"a is \[1\]: expected one value")],
)
def test_what_is_no_list_of_settings_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(text)
