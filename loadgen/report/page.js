// Draws the charts of a run report from the JSON in #data. Draws only: every figure comes from there.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3], [14, 5], [5, 2], [1, 2], [9, 2, 2, 2, 2, 2]];
  let plots = [];

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function number(value) {
    const size = Math.abs(value);
    if (size >= 99.95 || value === 0) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return String(Number(value.toPrecision(3)));
  }

  function duration(seconds) {
    if (seconds == null) return "–";
    const size = Math.abs(seconds);
    if (size >= 0.9995) return number(seconds) + " s";
    return size >= 0.0009995 ? number(seconds * 1e3) + " ms" : number(seconds * 1e6) + " µs";
  }

  const percent = (share) => (share == null ? "–" : number(share * 100) + "%");
  const figure = (value) => (value == null ? "–" : number(value));

  // 1–2–5 steps between the bounds, and finer ones when a zoom leaves fewer than three.
  function logSplits(plot, axis, low, high) {
    for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
        for (const step of steps) {
          const at = Number((step * 10 ** power).toPrecision(3));
          if (at >= low && at <= high) found.push(at);
        }
      if (found.length >= 4) return found;
      if (steps.length === 10) return found.length > 1 ? found : [low, high];
    }
  }

  // Without the labels that would touch the one before.
  function apart(plot, splits, room) {
    let last = -Infinity;
    return splits.map((split) => {
      const at = Math.abs(plot.valToPos(split, room.scale) - (room.scale === "y" ? plot.over.clientHeight : 0));
      if (at - last < room.px) return null;
      last = at;
      return split;
    });
  }

  const timeScale = { time: false, range: (plot, low, high) => [low ?? 0, high > low ? high : (low ?? 0) + 1] };
  const logScale = { time: false, distr: 3, range: (plot, low, high) => logRange(low, high) };
  // A little air on both sides; a single value gets a whole decade around it.
  function logRange(low, high) {
    if (low == null || !(low > 0)) return [0.001, 1];
    return low === high ? [low / 3, high * 3] : [low / 1.05, high * 1.05];
  }

  const stepped = (align) => (typeof uPlot === "undefined" ? null : uPlot.paths.stepped({ align }));

  // Charts by the id of their figure: columns (x, then one per arm), axes and how a series is drawn.
  const cdf = (curve, share) => ({
    arms: Object.keys(curve.share),
    columns: [curve.x, ...Object.values(curve.share).map((shares) => shares.map(share))],
    x: { scale: logScale, format: duration, splits: logSplits },
    path: stepped(1),
  });
  const load = (key) => ({
    arms: Object.keys(data.series.arms),
    columns: [data.series.t_s, ...Object.values(data.series.arms).map((arm) => arm[key])],
    x: { scale: timeScale, format: (t) => number(t) + " s" },
    y: { scale: { range: (plot, low, high) => [0, high > 0 ? high * 1.05 : 1] }, format: figure },
    path: stepped(1),
    sync: true,
  });
  const ofAll = (share) => share;
  const longer = (share) => (share < 1 ? 1 - share : null);
  const whole = { scale: { range: [0, 1] }, format: percent };
  const charts = {
    "ttft-cdf": () => ({ ...cdf(data.ttft_cdf, ofAll), y: whole }),
    "e2e-cdf": () => ({ ...cdf(data.e2e_cdf, ofAll), y: whole }),
    "chunk-gap": () => ({
      ...cdf(data.chunk_gap_cdf, longer),
      y: { scale: logScale, format: percent, splits: logSplits },
    }),
    "ttft-time": () => scatter(),
    "in-flight": () => load("in_flight"),
    "sends": () => load("sent_per_s"),
    "tokens": () => load("output_tokens_per_s"),
  };

  function scatter() {
    const arms = Object.keys(data.ttft_over_time).filter((arm) => data.ttft_over_time[arm].t_s.length);
    const tables = arms.map((arm) => [data.ttft_over_time[arm].t_s, data.ttft_over_time[arm].ttft_s]);
    return {
      arms,
      columns: tables.length ? spread(tables) : [[]],
      x: { scale: timeScale, format: (t) => number(t) + " s" },
      y: { scale: logScale, format: duration, splits: logSplits },
      points: true,
      sync: true,
    };
  }

  // One row per point, so that two requests intended at the same instant both stay.
  function spread(tables) {
    const rows = tables.flatMap(([x, y], arm) => x.map((at, i) => [at, arm, y[i]]));
    rows.sort((a, b) => a[0] - b[0]);
    return [rows.map((row) => row[0]), ...tables.map((_, arm) => rows.map((row) => (row[1] === arm ? row[2] : null)))];
  }

  // The nearest row that holds a value of this series: scatter columns are mostly empty.
  function nearest(plot, series, row) {
    const column = plot.data[series];
    if (series === 0 || row == null || column[row] != null) return row;
    for (let step = 1; step < column.length; step++) {
      if (column[row - step] != null) return row - step;
      if (column[row + step] != null) return row + step;
    }
    return row;
  }

  function draw(box, chart) {
    const { arms, columns, x, y } = chart;
    box.replaceChildren();
    box.classList.toggle("empty", !columns[0].length);
    if (!columns[0].length) {
      box.textContent = "Not enough data: no request of this run gives a value here.";
      return;
    }
    const axis = (side, room) => ({
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
      values: (plot, splits) => splits.map((split) => (split == null ? "" : side.format(split))),
      ...(side.splits ? { splits: side.splits, filter: (plot, splits) => apart(plot, splits, room) } : {}),
    });
    const series = arms.map((arm, i) => ({
      label: arm,
      stroke: colour("--a" + data.arms.indexOf(arm)),
      width: 2,
      dash: dashes[data.arms.indexOf(arm)],
      spanGaps: false,
      value: (plot, value) => y.format(value),
      paths: chart.points ? () => null : chart.path,
      points: chart.points ? { show: true, size: 5, width: 1, fill: colour("--a" + data.arms.indexOf(arm)) + "66" } : { show: false },
    }));
    const plot = new uPlot(
      {
        width: box.clientWidth,
        height: 300,
        scales: { x: x.scale, y: y.scale },
        axes: [axis(x, { scale: "x", px: 58 }), { ...axis(y, { scale: "y", px: 24 }), size: 66 }],
        series: [{ label: box.dataset.x, value: (p, value) => (value == null ? "–" : x.format(value)) }, ...series],
        cursor: {
          drag: { x: true, y: false },
          dataIdx: nearest,
          ...(chart.sync ? { sync: { key: "time", setSeries: true } } : {}),
        },
      },
      columns,
      box,
    );
    plots.push(plot);
    reachable(plot);
    touchable(plot);
  }

  // Legend names work from the keyboard.
  function reachable(plot) {
    for (const name of plot.root.querySelectorAll(".u-legend .u-series:not(:first-child) th")) {
      name.tabIndex = 0;
      name.setAttribute("role", "button");
      name.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        name.click();
      });
    }
  }

  // A finger that moves sideways zooms like a mouse does; up and down still scrolls the page.
  function touchable(plot) {
    const kinds = { pointerdown: "mousedown", pointermove: "mousemove", pointerup: "mouseup" };
    for (const [pointer, mouse] of Object.entries(kinds))
      plot.over.addEventListener(pointer, (event) => {
        if (event.pointerType === "mouse") return;
        const { clientX, clientY } = event;
        plot.over.dispatchEvent(new MouseEvent(mouse, { clientX, clientY, movementX: 1, button: 0, bubbles: true }));
      });
  }

  const hiddenPhases = new Set();

  function drawPhases() {
    const box = document.getElementById("phase-bars");
    if (!box) return;
    const shown = data.phase_names.filter((phase) => !hiddenPhases.has(phase));
    const sums = Object.values(data.phase_means_s).map((means) => shown.reduce((sum, phase) => sum + (means[phase] ?? 0), 0));
    const longest = Math.max(...sums, Number.MIN_VALUE);
    box.replaceChildren(
      ...Object.entries(data.phase_means_s).map(([arm, means], i) => {
        const row = document.createElement("div");
        row.className = "bar-row";
        const name = document.createElement("span");
        name.textContent = arm;
        const bar = document.createElement("div");
        bar.className = "bar";
        for (const phase of shown) {
          const part = document.createElement("i");
          part.style.width = (100 * (means[phase] ?? 0)) / longest + "%";
          part.style.background = `var(--a${phaseColour(phase)})`;
          part.title = `${phase}: ${duration(means[phase])} on average`;
          bar.append(part);
        }
        const total = document.createElement("output");
        total.textContent = duration(sums[i]);
        row.append(name, bar, total);
        return row;
      }),
    );
    for (const key of document.querySelectorAll(".keys [data-phase]"))
      key.setAttribute("aria-pressed", String(!hiddenPhases.has(key.dataset.phase)));
  }

  const phaseColour = (phase) => [7, 4, 9, 3, 2, 1, 0, 5][data.phase_names.indexOf(phase)];

  function phaseKeys() {
    const keys = document.getElementById("phase-keys");
    if (!keys) return;
    const button = (text, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", () => { act(); drawPhases(); });
      keys.append(made);
      return made;
    };
    for (const phase of data.phase_names) {
      const key = button(phase, () => (hiddenPhases.has(phase) ? hiddenPhases.delete(phase) : hiddenPhases.add(phase)));
      key.dataset.phase = phase;
      key.style.setProperty("--arm", `var(--a${phaseColour(phase)})`);
    }
    button("Only the gateway’s own work", () => ["first_byte", "relay"].forEach((phase) => hiddenPhases.add(phase))).className = "preset";
    button("All phases", () => hiddenPhases.clear()).className = "preset";
  }

  function drawAll() {
    plots.forEach((plot) => plot.destroy());
    plots = [];
    for (const [id, chart] of Object.entries(charts)) draw(document.getElementById(id), chart());
    drawPhases();
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    drawAll();
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const preferred = () => (dark.matches ? "dark" : "light");
  document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => setTheme(preferred()));
  for (const reset of document.querySelectorAll("[data-reset]"))
    reset.addEventListener("click", () => {
      const plot = plots.find((each) => each.root.parentElement.id === reset.dataset.reset);
      if (plot) plot.setData(plot.data, true);
    });

  let width = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    for (const plot of plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: 300 });
  }).observe(document.querySelector(".charts"));

  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    for (const section of document.querySelectorAll("#definitions ~ details")) section.open = true;
    if (before === "dark") setTheme("light");
  });
  addEventListener("afterprint", () => { if (before === "dark") setTheme(before); });

  phaseKeys();
  setTheme(preferred());
})();
