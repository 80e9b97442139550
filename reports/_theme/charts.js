// The part of assets/charts.js that is ours: finds the charts of a page and draws them in its
// colours and width. llmbench.report.site.renderer puts the Vega bundle before it, which defines LLMBENCH_VEGA_EMBED.
(function () {
  if (window.LLMBENCH_CHARTS) return;
  const charts = (window.LLMBENCH_CHARTS = {});
  const quartoDark = () => document.body.classList.contains("quarto-dark");
  const isDark = () => document.documentElement.dataset.theme === "dark" || quartoDark();

  function merge(base, over) {
    const result = { ...(base || {}) };
    for (const [key, value] of Object.entries(over)) {
      const nested = value && typeof value === "object" && !Array.isArray(value);
      result[key] = nested ? merge(result[key], value) : value;
    }
    return result;
  }

  function pageConfig(single, width) {
    const style = getComputedStyle(document.body);
    const colour = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
    const ink = colour("--ink", "#1b2430");
    const muted = colour("--muted", "#55606e");
    const line = colour("--line", "#dfe4ea");
    const font = style.fontFamily;
    // About one tick for 90 pixels: the default of one for 40 lets long numbers touch.
    const ticks = { tickCount: { expr: "max(3, round(width / 90))" } };
    return {
      background: "transparent",
      font,
      view: { stroke: "transparent" },
      axis: { labelColor: muted, titleColor: ink, gridColor: line, domainColor: muted, tickColor: muted,
              labelFont: font, titleFont: font, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 600,
              titlePadding: 8, labelSeparation: 8 },
      axisY: { labelLimit: isNarrow(width) ? 180 : 320 },
      ...(single ? { axisXQuantitative: ticks } : {}),
      legend: { labelColor: ink, titleColor: ink, labelFont: font, titleFont: font, labelFontSize: 12,
                titleFontSize: 12, titleFontWeight: 600 },
      header: { labelColor: ink, titleColor: ink, labelFont: font, titleFont: font, labelFontSize: 12 },
      title: { color: ink, subtitleColor: muted, font, subtitleFont: font },
      text: { color: ink },
      rule: { color: ink },
    };
  }

  // Only a single view or a layer can follow its container; a facet or a concat keeps its own size.
  function isSingleView(spec) {
    const encoding = spec.encoding || {};
    const composed = ["hconcat", "vconcat", "concat", "repeat", "facet"].some((key) => key in spec);
    return !composed && !encoding.row && !encoding.column && !encoding.facet;
  }

  // Long axis titles break into lines, and legends lose columns, where a phone would cut them off.
  function narrowed(part, width, columns) {
    if (Array.isArray(part)) return part.map((item) => narrowed(item, width, columns));
    if (!part || typeof part !== "object") return part;
    const result = {};
    for (const [key, value] of Object.entries(part)) {
      const untouched = ["data", "datasets", "tooltip", "y"].includes(key);
      const title = key === "title" && [value].flat();
      if (title && title.every((line) => typeof line === "string")) result[key] = broken(title, Math.floor(width / 12));
      else if (key === "columns" && typeof value === "number") result[key] = value > 2 ? columns : 1;
      else result[key] = untouched ? value : narrowed(value, width, columns);
    }
    if (columns === 1 && "columns" in part) result.labelExpr = TWO_LINES;
    return result;
  }

  const SPACE = "lastindexof(slice(datum.label, 0, 24), ' ')";
  const TWO_LINES = "length(datum.label) < 24 || " + SPACE + " < 1 ? datum.label : " +
    "[slice(datum.label, 0, " + SPACE + "), slice(datum.label, " + SPACE + " + 1)]";

  function broken(title, limit) {
    const result = title.flatMap((line) => lines(line, limit));
    return result.length > 1 ? result : result[0];
  }

  function lines(text, limit) {
    const result = [""];
    for (const word of text.split(" ")) {
      const last = result[result.length - 1];
      if (last && last.length + 1 + word.length > limit) result.push(word);
      else result[result.length - 1] = last ? last + " " + word : word;
    }
    return result.length > 1 ? result : text;
  }

  const isNarrow = (width) => width < 480;

  // data-width="fixed" on the division keeps the width of the specification.
  function isFluid(spec, target) {
    const stepped = spec.width && typeof spec.width === "object";
    return isSingleView(spec) && !stepped && target.dataset.width !== "fixed";
  }

  // The whole drawing, axes and padding included, is as wide as its place.
  function fitted(spec, width, room) {
    const narrow = isNarrow(width);
    const padding = spec.padding || { left: 2, top: 5, bottom: 5, right: (narrow ? 28 : 5) + room.right };
    return { ...(narrow ? narrowed(spec, width, room.columns) : spec), width, padding, autosize: "pad" };
  }

  // How many pixels words of a drawing, and those of its legend, lie to the right of it; how long those beside marks
  // are, and what length would have room.
  function overhang(target) {
    const drawing = target.querySelector("svg.marks");
    const edge = drawing.getBoundingClientRect().right;
    const over = { words: 0, legend: 0, longest: 0, limit: Infinity };
    for (const text of drawing.querySelectorAll("text")) {
      const key = text.closest(".role-legend") ? "legend" : "words";
      const place = text.getBoundingClientRect();
      over[key] = Math.max(over[key], place.right - edge);
      if (!text.closest(".role-mark")) continue;
      over.longest = Math.max(over.longest, place.width);
      if (place.right > edge) over.limit = Math.min(over.limit, edge - place.left);
    }
    return over;
  }

  // Set after Vega-Lite has compiled: asked for earlier, it warns about every chart with a stepped height.
  const fitWidth = (compiled) => ({ ...compiled, autosize: { type: "fit-x", contains: "padding" } });

  // The name moves from the place to the drawing: a picture may not hold the menu that saves it.
  function nameDrawing(chart) {
    const drawing = chart.target.querySelector("svg.marks");
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", chart.words);
    chart.target.removeAttribute("role");
    chart.target.removeAttribute("aria-label");
  }

  const PLOT = 120, NUMBER = 60; // pixels that words leave to bars and lines, and that they keep

  // Where it is narrow, words beside bars need room that only a drawing tells: more padding, then an ellipsis. Whether
  // something is left to do.
  function makeRoom(chart, room) {
    const over = overhang(chart.target), plot = Math.floor(chart.result.view.width());
    const shorter = plot < PLOT && over.longest > Math.min(NUMBER, room.limit || NUMBER);
    if (over.words < 1 && over.legend < 1 && !shorter) return false;
    if (over.legend >= 1) room.columns = 1;
    if (shorter || plot <= PLOT) room.limit = Math.max(NUMBER, Math.min(over.limit, over.longest - (PLOT - plot)));
    else room.right += Math.min(Math.ceil(1.2 * over.words), plot - PLOT);
    return true;
  }

  async function embed(chart, theme, fluid, width, room) {
    const themed = { ...chart.spec, config: merge(chart.spec.config, pageConfig(isSingleView(chart.spec), width)) };
    delete themed.background;
    if (room.limit) themed.config.text.limit = room.limit;
    if (chart.result) chart.result.finalize();
    chart.result = await window.LLMBENCH_VEGA_EMBED(chart.target, fluid ? fitted(themed, width, room) : themed, {
      // ast: expressions are interpreted, not compiled, so a policy may forbid eval
      mode: "vega-lite", renderer: "svg", ast: true, tooltip: { theme }, ...(fluid ? { patch: fitWidth } : {}),
      actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
      downloadFileName: chart.name,
    });
  }

  async function draw(chart) {
    const width = Math.floor(chart.target.clientWidth);
    if (chart.drawing || width === 0) return;
    chart.drawing = true;
    const theme = isDark() ? "dark" : "light";
    const fluid = isFluid(chart.spec, chart.target);
    try {
      chart.target.classList.toggle("is-fluid", fluid);
      const room = { right: 0, columns: 2 };
      let tries = fluid && isNarrow(width) ? 6 : 0;
      do await embed(chart, theme, fluid, width, room);
      while (tries-- > 0 && makeRoom(chart, room));
      nameDrawing(chart);
      chart.target.setAttribute("data-drawn", theme);
      chart.width = width;
    } catch (error) {
      chart.target.textContent = "This chart could not be drawn: " + error.message;
      chart.target.classList.add("chart-error");
    }
    chart.drawing = false;
    if (theme !== (isDark() ? "dark" : "light")) draw(chart);
  }

  // A chart in a closed tab has no width: it is drawn when the tab opens.
  function resize(chart) {
    const width = Math.floor(chart.target.clientWidth);
    if (width === 0 || width === chart.width) return;
    if (!chart.result || isNarrow(width) !== isNarrow(chart.width)) return draw(chart);
    chart.width = width;
    if (isFluid(chart.spec, chart.target)) chart.result.view.width(width).runAsync();
  }

  function start() {
    const resized = new ResizeObserver((entries) => entries.forEach((entry) => resize(charts[entry.target.id])));
    document.querySelectorAll("script[data-chart]").forEach((script) => {
      const name = script.dataset.chart;
      const target = document.getElementById(name);
      if (!target) return;
      const words = target.getAttribute("aria-label") || name;
      charts[name] = { name, target, words, spec: JSON.parse(script.textContent) };
      resized.observe(target);
    });
    const redraw = () => Object.values(charts).forEach((chart) => chart.result && draw(chart));
    const watch = new MutationObserver(redraw);
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    watch.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
