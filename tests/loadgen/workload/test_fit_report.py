import re
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest

from loadgen.workload.description import Source
from loadgen.workload.fit import fit_workload
from loadgen.workload.fit_report import fit_page
from loadgen.workload.traffic import Requests

SOURCE = Source(dataset="d <b>", citation="c", licence="l", file_sha256="0123456789abcdef0", rows=1, command="weir fit")


def traffic(*, grid_s=0.0, shared=False, count=2000):
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.exponential(0.3, count))
    at_s = np.floor(at_s / grid_s) * grid_s if grid_s else at_s
    prompt = np.rint(rng.lognormal(6, 0.8, count)).astype(np.int64) + 1
    output = rng.integers(1, 300, count)
    requests = Requests.unshared(at_s - at_s[0], prompt, output)
    if not shared:
        return requests
    offsets = np.arange(count + 1) * 2
    head = np.minimum(prompt - 1, 64)
    return Requests(
        at_s=requests.at_s,
        prompt_tokens=prompt,
        output_tokens=output,
        session=requests.session,
        segment_offsets=offsets,
        segment_ids=np.column_stack((head, np.arange(count) + 1000)).ravel(),
        segment_tokens=np.column_stack((head, prompt - head)).ravel(),
    )


class Elements(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.addresses = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]


@pytest.fixture(scope="module")
def fitted():
    requests = traffic()
    return requests, fit_workload(requests, name="yesterday & co", source=SOURCE)


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(fitted):
    page = fit_page(*fitted)
    elements = Elements(page)
    assert not {"script", "link", "img", "iframe", "b"} & set(elements.tags)
    assert elements.addresses == []
    assert "url(" not in page
    assert "yesterday &amp; co" in page
    assert "d &lt;b&gt;" in page
    assert elements.tags.count("svg") == 11


def test_equal_fits_give_equal_pages(fitted):
    assert fit_page(*fitted) == fit_page(*fitted)


def test_every_mark_lies_within_its_chart(fitted):
    page = fit_page(*fitted)
    assert "nan" not in page
    for box, inside in re.findall(r'viewBox="0 0 ([\d ]+)"[^>]*>(.*?)</svg>', page, re.DOTALL):
        width, height = map(float, box.split())
        for points in re.findall(r'points="([^"]+)"', inside):
            across, up = np.array([pair.split(",") for pair in points.split()], dtype=float).T
            assert (across.min() >= 0, across.max() <= width) == (True, True)
            assert (up.min() >= 0, up.max() <= height) == (True, True)


def test_verdicts_and_their_reasons_are_on_it(fitted):
    requests, workload = fitted
    page = fit_page(requests, workload)
    assert workload.lengths.output_fit is not None
    assert workload.lengths.output_fit.verdict.split(":")[0] in page
    assert "best single law" in page
    column = msgspec.structs.replace(workload.lengths.output_fit, best=None, verdict="not fittable: 1 length")
    lengths = msgspec.structs.replace(workload.lengths, output_fit=column)
    page = fit_page(requests, msgspec.structs.replace(workload, lengths=lengths))
    assert '<td class="bad">not fittable: 1 length<p>' in page


def test_times_on_a_grid_are_compared_off_it():
    requests = traffic(grid_s=2.0)
    workload = fit_workload(requests, name="w", source=SOURCE)
    page = fit_page(requests, workload)
    assert "times lie on a grid of 2 s" in page
    assert '<th>arrivals</th><td class="good">' in page


def test_what_prompts_share_is_told():
    requests = traffic(shared=True)
    workload = fit_workload(requests, name="w", source=SOURCE)
    page = fit_page(requests, workload)
    assert re.search(r"an unbounded cache hits \d+\.\d% in the log, \d+\.\d% in a draw", page)
    assert "Shared text over time" in page


def test_a_workload_without_a_fit_has_charts_and_no_verdicts(fitted):
    requests, workload = fitted
    arrivals = msgspec.structs.replace(workload.arrivals, fit=None)
    lengths = msgspec.structs.replace(workload.lengths, prompt_fit=None, output_fit=None)
    bare = msgspec.structs.replace(workload, source=None, arrivals=arrivals, lengths=lengths)
    page = fit_page(requests, bare)
    assert '<div class="scroll"><table></table></div>' in page
    assert "sha256" not in page
