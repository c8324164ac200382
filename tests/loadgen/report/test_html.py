"""The page: one file, everything escaped, the verdict first, and complete without its script."""

import re
from html.parser import HTMLParser

import msgspec
import pytest

from loadgen.analyze.summary import summarise
from loadgen.analyze.validity import GatewayView, JoinCounts
from loadgen.report.charts import chart_data, charts
from loadgen.report.html import UPLOT_VERSION, embedded_json, page

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Outline(HTMLParser):
    """Checks nesting and collects what tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.attributes, self.text = [], [], [], []
        self.tables = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *each) for each in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        self.tables += tag == "table"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def view(n):
    counts = JoinCounts(**dict.fromkeys(JoinCounts.__struct_fields__, 0))
    return GatewayView(counts=counts, pools={}, phases_ns={i: {"admit": 30_000} for i in range(n)}, outside_ns={})


@pytest.fixture(scope="module")
def summary(made):
    requests = [made.request(i, at_ms=10 * i, arm="ab"[i % 2]) for i in range(600)]
    return summarise(made.evidence([*requests, made.failed(600)], gateway=view(600)))


def test_the_page_is_well_formed_and_every_chart_has_a_table(summary):
    found = Outline(page(summary))
    assert len(found.ids) == len(set(found.ids))
    assert {chart.name for chart in charts(summary)} <= set(found.ids)
    assert all(table.sections for chart in charts(summary) for table in chart.tables)
    assert found.tables == 5 + sum(len(chart.tables) for chart in charts(summary))
    labels = {value for _, name, value in found.attributes if name == "aria-labelledby"}
    assert labels <= set(found.ids)


def test_the_page_loads_nothing(summary):
    found = Outline(page(summary))
    assert [a for a in found.attributes if a[1] in ("src", "href", "srcset", "action")] == []
    assert not re.search(r"@import|url\(", page(summary))
    (policy,) = [value for _, name, value in found.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'")


def test_verdict_and_headline_come_before_any_table(summary):
    text = page(summary)
    assert text.index(">VALID<") < text.index('id="headline"') < text.index("<table")
    assert "TTFT P50 200 ms, P99 200 ms over 600 requests" in text


def test_reasons_are_on_the_page_with_remedies(made):
    text = page(summarise(made.evidence([made.request(0), made.unsent(1)])))
    assert ">INVALID<" in text
    assert "error: not all sent." in text
    assert "→ Run for longer." in text


def test_every_definition_is_on_the_page(summary):
    text = " ".join(Outline(page(summary)).text)
    assert all(definition.meaning in text for definition in summary.definitions)


def test_hostile_text_stays_text(made):
    hostile = "</script><script>alert(1)</script><!-- \"' &"
    requests = [made.failed(0, error=hostile, arm=hostile), made.request(1, arm="b")]
    header, _ = made.schedule(requests)
    manifest = made.manifest(
        requests, header, model=hostile, url=hostile, run_id=hostile, command=[hostile], host={hostile: hostile}
    )
    text = page(summarise(made.evidence(requests, manifest=manifest, gateway=view(2))))
    assert Outline(text).ids.count("data") == 1
    assert "<script>alert" not in text
    assert hostile in "".join(Outline(text).text)


def test_embedded_json_cannot_end_its_element_and_reads_back():
    value = {"a": "</script><!--", "b": [1.5, None]}
    assert "<" not in embedded_json(value)
    assert msgspec.json.decode(embedded_json(value)) == value


def test_the_script_finds_the_data_it_reads(summary):
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page(summary), re.S).group(1)
    assert msgspec.json.decode(block) == msgspec.json.decode(msgspec.json.encode(chart_data(summary)))


def test_the_vendored_library_has_its_version_and_licence(summary):
    assert f"uPlot (v{UPLOT_VERSION})" in page(summary)
    assert "Permission is hereby granted" in page(summary)


def test_colours_exist_for_as_many_arms_as_a_summary_can_have(made):
    requests = [made.request(i, arm=f"arm{i:02}" if i < 12 else None) for i in range(13)]
    found = summarise(made.evidence(requests))
    css = page(found)
    assert len(found.arms) == 10
    assert all(css.count(f"--a{i}:") == 2 for i in range(10))


@pytest.mark.parametrize("kind", ["empty", "all failed", "unsent"])
def test_runs_without_data_have_an_honest_page(made, kind):
    requests = {"empty": [], "all failed": [made.failed(i) for i in range(3)], "unsent": [made.unsent(0)]}[kind]
    text = page(summarise(made.evidence(requests, manifest=None, gateway=view(0))))
    Outline(text)
    assert "Not enough data" in text
    assert ">INVALID<" in text


def test_a_thinned_scatter_says_so(made):
    requests = [made.request(i, at_ms=i) for i in range(2100)]
    assert "2,000 of 2,100 shown" in page(summarise(made.evidence(requests)))


def test_a_short_run_shows_its_largest_value_instead_of_a_p99(made):
    text = page(summarise(made.evidence([made.request(i) for i in range(10)])))
    assert "TTFT P50 200 ms, max 200 ms over 10 requests" in text
