"""The page in a real browser: charts draw, and zoom, hover, legend, theme and phases do what they say."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from loadgen.report.command import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

WATCH = """<script>
window.faults = [];
addEventListener("error", (event) => faults.push(event.message));
addEventListener("securitypolicyviolation", (event) => faults.push(event.violatedDirective));
</script>"""

ACT = """<script>
const seen = {};
const box = document.getElementById("ttft-cdf");
const over = () => box.querySelector(".u-over");
function mouse(kind, share, target) {
  const at = over().getBoundingClientRect();
  const where = { clientX: at.left + at.width * share, clientY: at.top + at.height / 2, movementX: 1, bubbles: true };
  (target ?? over()).dispatchEvent(new MouseEvent(kind, where));
}
const legend = () => [...box.querySelectorAll(".u-legend .u-series")].map((each) => each.textContent);
const frame = () => new Promise((done) => setTimeout(done, 60));
async function hover(share) {
  mouse("mouseenter", share);
  mouse("mousemove", share);
  await frame();
  return legend();
}
async function act() {
  await frame();
  seen.charts = document.querySelectorAll(".plot canvas").length;
  seen.hover = await hover(0.5);
  mouse("mousedown", 0.2);
  mouse("mousemove", 0.3);
  mouse("mouseup", 0.3, document);
  await frame();
  seen.zoomed = await hover(0.5);
  document.querySelector('[data-reset="ttft-cdf"]').click();
  await frame();
  seen.reset = await hover(0.5);
  const name = box.querySelectorAll(".u-legend .u-series th")[1];
  name.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  await frame();
  seen.hidden = box.querySelectorAll(".u-legend .u-series.u-off").length;
  const theme = document.documentElement.dataset.theme;
  const colour = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click();
  await frame();
  seen.themes = [theme, document.documentElement.dataset.theme];
  seen.repainted = colour !== getComputedStyle(document.body).backgroundColor;
  seen.chartsAfterTheme = document.querySelectorAll(".plot canvas").length;
  const totals = () => [...document.querySelectorAll(".bar-row output")].map((each) => each.textContent);
  seen.phases = totals();
  document.querySelector(".keys .preset").click();
  seen.ownWork = totals();
  seen.wide = document.documentElement.scrollWidth > innerWidth;
  seen.faults = faults;
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
}
act();
</script>"""


@pytest.fixture(scope="module")
def seen(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("page")
    requests = [made.request(i, at_ms=10 * i, arm="ab"[i % 2], ttft_ms=100 + i) for i in range(400)]
    records = [made.gateway(r) for r in requests]
    _, page = write_report(made.run_directory(path / "run", requests, gateway_records=records))
    watched = page.read_text().replace("<head>", f"<head>{WATCH}", 1).replace("</body>", f"{ACT}</body>", 1)
    (path / "watched.html").write_text(watched)
    shown = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *(f"--user-data-dir={path / 'profile'}", "--window-size=390,900", "--virtual-time-budget=5000"),
            *("--dump-dom", f"file://{path / 'watched.html'}"),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return json.loads(unescape(re.search(r'<pre id="seen">(.*?)</pre>', shown.stdout, re.S).group(1)))


def test_every_chart_draws_without_a_fault(seen):
    assert seen["faults"] == []
    assert seen["charts"] == seen["chartsAfterTheme"] == 7


def test_hover_shows_the_values_of_every_arm(seen):
    assert [re.split(r"(?=\d)", text)[0] for text in seen["hover"]] == ["TTFT ≤", "a", "b"]
    assert all(re.search(r"\d+(\.\d+)?%$", text) for text in seen["hover"][1:])


def test_drag_zooms_in_and_reset_shows_all_again(seen):
    assert seen["zoomed"] != seen["hover"]
    assert seen["reset"] == seen["hover"]


def test_a_legend_name_hides_its_arm_from_the_keyboard(seen):
    assert seen["hidden"] == 1


def test_the_theme_switches(seen):
    assert sorted(seen["themes"]) == ["dark", "light"]
    assert seen["repainted"]


def test_only_the_gateways_own_work_remains_when_asked(seen):
    assert seen["ownWork"] == ["65 µs", "65 µs"]
    assert seen["phases"] != seen["ownWork"]


def test_the_page_fits_a_phone(seen):
    assert not seen["wide"]
