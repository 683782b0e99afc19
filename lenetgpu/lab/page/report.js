// Draws the charts when they come into view, in the page's colours; sorts and filters the tables.
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const drawn = new Map();

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    const series = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => of(`c${n}`));
    return { ink: of("ink"), soft: of("soft"), line: of("line"), series, font: of("sans") };
  }

  // The specification with every legend in as many columns as `width` pixels have room for.
  function fitted(spec, width) {
    const walk = (value) => {
      if (!value || typeof value !== "object") return;
      for (const channel of ["color", "strokeDash"]) {
        const { legend, scale } = value[channel] ?? {};
        if (!legend || legend.columns) continue;
        const names = legend.values ?? scale?.domain ?? [];
        const longest = Math.max(4, ...names.map((name) => String(name).length));
        legend.columns = Math.max(1, Math.min(names.length, Math.floor(width / (7 * longest + 34))));
      }
      for (const [key, part] of Object.entries(value)) if (key !== "data") walk(part);
    };
    const copy = structuredClone(spec);
    walk(copy);
    return copy;
  }

  function look(width) {
    const { ink, soft, line, series, font } = colours();
    const small = width < 480;
    const labels = Math.max(100, Math.min(420, Math.round(width * (small ? 0.45 : 0.4))));
    const text = { labelFont: font, titleFont: font, labelFontSize: small ? 11 : 12, titleFontSize: 12 };
    return {
      background: "transparent",
      font,
      padding: 2,
      view: { stroke: null },
      range: { category: series },
      axis: { ...text, labelColor: ink, titleColor: soft, titleFontWeight: 400, gridColor: line, domainColor: soft, tickColor: soft, labelLimit: labels, labelSeparation: 8, titleLimit: width * 0.9 },
      axisX: { titleAnchor: small ? "end" : "middle", labelFlush: true },
      legend: { ...text, labelColor: ink, titleColor: soft, titleFontWeight: 400, orient: "top", direction: "horizontal", labelLimit: width * 0.45, symbolStrokeWidth: 2, symbolOpacity: 1, offset: 12, layout: { top: { anchor: "start", direction: "vertical", margin: 4 } } },
      rule: { color: soft },
      point: { color: ink },
      line: { color: soft },
      text: { color: ink },
      bar: { color: series[0] },
      mark: { tooltip: null },
    };
  }

  async function draw(figure) {
    drawn.get(figure)?.finalize();
    try {
      const width = figure.clientWidth;
      const made = await vegaEmbed(figure, fitted(specs[figure.dataset.chart], 0.6 * width), {
        mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false,
        config: look(width), tooltip: { disableDefaultStyle: true, theme: "page" },
      });
      drawn.set(figure, made);
      figure.classList.add("drawn");
    } catch (error) {
      figure.textContent = "This chart could not be drawn here; its figures are in the tables.";
      console.error(error);
    }
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  const figures = [...document.querySelectorAll("[data-chart]")];
  for (const figure of figures) seen.observe(figure);
  for (const query of [dark, narrow]) {
    query.addEventListener("change", () => [...drawn.keys()].forEach(draw));
  }
  addEventListener("beforeprint", () => figures.filter((figure) => !drawn.has(figure)).forEach(draw));

  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  // Rows without a value stay last whichever way the others go.
  function compare(one, other, column, sign) {
    const [a, b] = [one.cells[column], other.cells[column]];
    const [left, right] = [a.textContent.trim(), b.textContent.trim()];
    if (!left || !right) return (left ? 0 : 1) - (right ? 0 : 1);
    const numbers = a.dataset.v !== undefined && b.dataset.v !== undefined;
    return sign * (numbers ? Number(a.dataset.v) - Number(b.dataset.v) : words.compare(left, right));
  }

  function sort(table, head) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((one, other) => compare(one, other, head.cellIndex, up ? 1 : -1));
    table.tBodies[0].append(...rows);
  }

  function filter(box, table, said) {
    const asked = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !asked.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    said.textContent = asked.length ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
  }

  for (const table of document.querySelectorAll("table.sorted")) {
    for (const head of table.tHead.rows[0].cells) {
      head.querySelector("button").addEventListener("click", () => sort(table, head));
    }
    const line = table.parentElement.previousElementSibling;
    if (!line?.classList.contains("filter")) continue;
    const box = line.querySelector("input");
    box.addEventListener("input", () => filter(box, table, line.querySelector("output")));
  }
})();
