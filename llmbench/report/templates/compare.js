// The page Compare: a list of sets with pickers, and two of them beside each other. It draws and filters; every figure
// and every verdict was computed when the site was built. State is in the address.
(function () {
"use strict";
const D = JSON.parse(document.getElementById("compare-data").textContent);
const root = document.getElementById("compare");
const FILTERS = { study: "Study", model: "Model", hardware: "Hardware", world_size: "Ranks", strategy: "Strategy" };
const FACTS = { model: "Model", strategy: "Strategy", world_size: "Ranks", hardware: "Hardware", framework: "Framework",
  precision: "Precision", seq_len: "Sequence length", global_tokens: "Global tokens", micro_batch: "Micro batch", settings: "Strategy settings other than the defaults", repeats: "Repeats" };
const DEFAULTS = { metric: D.metrics[0].column, study: "", model: "", hardware: "", world_size: "", strategy: "",
  show: "absolute", axis: "linear", a: "", b: "", all: "" };
const FIRST = 40;
let state = { ...DEFAULTS };

function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function significant(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 10 ** digits) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

const metric = () => D.metrics.find((one) => one.column === state.metric) || D.metrics[0];
const known = (one) => one.values[metric().column];
const chosen = (name) => (state[name] === "" ? null : D.sets[Number(state[name])] || null);
function withSpan([value, low, high]) {
  const span = low === null || high === null ? "" : ` (${significant(low)} to ${significant(high)})`;
  return significant(value) + span;
}

// ---- address
function fromAddress() {
  state = { ...DEFAULTS };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in state) state[name] = value.slice(0, 200);
  if (!D.metrics.some((one) => one.column === state.metric)) state.metric = DEFAULTS.metric;
  for (const name of ["a", "b"]) if (state[name] !== "" && !/^\d+$/.test(state[name])) state[name] = "";
}

function toAddress() {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) if (value !== DEFAULTS[name]) found.set(name, value);
  const text = found.toString();
  try {
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  } catch (error) { // a browser that allows only some changes per second: the next one is kept
    return;
  }
}

function change(name, value) {
  state[name] = value;
  toAddress();
  draw();
}

// ---- pickers
function options(name) {
  const values = new Map();
  for (const one of D.sets) if (known(one) && one[name] !== undefined) values.set(String(one[name]), one[name]);
  const sorted = [...values.values()].sort((x, y) => (typeof x === "number" ? x - y : String(x).localeCompare(String(y))));
  return [["", "all"], ...sorted.map((value) => [String(value), String(value)])];
}

function picker(name, words, choices) {
  const box = el("select", { id: "compare-" + name, onchange: () => change(name, box.value) });
  box.append(...choices.map(([value, text]) => el("option", { value }, text)));
  box.value = state[name];
  if (box.selectedIndex < 0) box.value = "";
  return el("label", { for: box.id }, words, box);
}

function form() {
  const metrics = D.metrics.filter((m) => D.sets.some((one) => one.values[m.column])).map((m) => [m.column, m.words]);
  const filters = Object.entries(FILTERS).map(([name, words]) => picker(name, words, options(name)));
  const ratio = [["absolute", "values"], ["ratio", "ratio to A"]], axes = [["linear", "linear from 0"], ["log", "logarithmic"]];
  return el("div", { class: "compare-form" }, picker("metric", "Metric", metrics), ...filters, picker("show", "Show", ratio), picker("axis", "Axis", axes));
}

// ---- the list
function rows() {
  const wanted = Object.keys(FILTERS).filter((name) => state[name] !== "");
  const kept = D.sets.map((one, place) => [one, place]).filter(([one]) => known(one) && wanted.every((name) => String(one[name]) === state[name]));
  const sign = metric().more_is_better ? -1 : 1;
  return kept.sort(([x], [y]) => sign * (known(x)[0] - known(y)[0]));
}

function shown(one) { // what the list draws of a set: its values, or their ratio to A
  const base = chosen("a") && known(chosen("a"));
  if (state.show !== "ratio" || !base || !base[0]) return known(one);
  const pair = metric().column === "tokens_per_s" ? pairOf(one, chosen("a")) : null;
  return pair ? pair : [known(one)[0] / base[0], null, null];
}

function axis(drawn) {
  const values = drawn.flat().filter((v) => v !== null && v > 0);
  const most = Math.max(...values), least = Math.min(...values);
  if (state.axis === "log" && most > least) {
    const [from, to] = [Math.log(least) - 0.03, Math.log(most) + 0.03];
    return (v) => (100 * (Math.log(Math.max(v, least)) - from)) / (to - from);
  }
  return (v) => (100 * v) / (1.04 * most);
}

function mark(value, at) {
  const track = el("div", { class: "compare-track", "aria-hidden": "true" });
  if (value[1] !== null && value[2] !== null) {
    const span = el("span", { class: "compare-span" });
    span.style.left = at(value[1]) + "%";
    span.style.width = Math.max(0, at(value[2]) - at(value[1])) + "%";
    track.append(span);
  }
  const dot = el("span", { class: "compare-dot" });
  dot.style.left = at(value[0]) + "%";
  track.append(dot);
  return track;
}

function choose(name, place) {
  return el("button", { type: "button", "aria-pressed": String(state[name] === String(place)),
    "aria-label": `${name.toUpperCase()}: ${D.sets[place].label}, ${D.sets[place].study}`,
    onclick: () => change(name, state[name] === String(place) ? "" : String(place)) }, name.toUpperCase());
}

function line([one, place], at) {
  const value = shown(one);
  const who = el("div", { class: "compare-who" }, one.label, el("br"), el("a", { href: one.page }, one.study));
  return el("li", { class: "compare-row" }, el("span", {}, choose("a", place), " ", choose("b", place)), who, mark(value, at), el("div", { class: "compare-value" }, withSpan(value)));
}

function list() {
  const found = rows(), some = state.all ? found : found.slice(0, FIRST);
  const at = found.length ? axis(found.map(([one]) => shown(one))) : null;
  const made = el("ul", { class: "compare-list" }, ...some.map((row) => line(row, at)));
  const more = found.length > some.length ? el("button", { type: "button", onclick: () => change("all", "1") }, `show all ${found.length}`) : null;
  const unit = state.show === "ratio" && chosen("a") ? `ratio to A, ${chosen("a").label}` : metric().words;
  const note = `${found.length} of ${D.sets.length} sets of repeats; ${unit}. The line is the 95 % interval where there is one.`;
  return el("div", {}, el("p", { class: "compare-note", role: "status" }, note), made, more);
}

// ---- two of them
function found(x, y) {
  return D.pairs.find((p) => p.page === x.page && x.page === y.page && ((p.a === x.label && p.b === y.label) || (p.a === y.label && p.b === x.label)));
}

function pairOf(x, y) { // the speed of x over that of y with its interval; null where it was not computed
  const pair = found(x, y);
  if (!pair) return null;
  const ends = [pair.ratio, pair.low, pair.high];
  return pair.a === x.label ? ends : [1 / pair.ratio, pair.high && 1 / pair.high, pair.low && 1 / pair.low];
}

function said(x, y) {
  const pair = found(x, y);
  if (!pair) return ["No claim: these sets are of different studies, or were not trained at equal ranks. The values stand side by side; what differs is listed.", []];
  const [ratio, low, high] = pairOf(x, y), span = low === null ? "" : ` (95 % ${low.toFixed(2)} to ${high.toFixed(2)})`;
  const times = `${x.label} trains ${ratio.toFixed(2)} times as fast as ${y.label}${span}`;
  if (pair.claimed) return [`Claimed: ${times}.`, []];
  if (pair.comparable !== "yes") return [`Not claimed: ${pair.comparable === "no" ? "the two are not comparable" : "it is unknown whether the two are comparable"}. ${times}.`, pair.reasons];
  return [`Not claimed: ${times}; ${pair.once ? "one run says nothing about the next" : "the interval contains 1"}.`, []];
}

function two() {
  const x = chosen("a"), y = chosen("b");
  if (!x || !y) return el("p", { class: "compare-note" }, "Choose A and B in the list to put two sets beside each other.");
  const [sentence, reasons] = said(x, y);
  const head = el("tr", {}, ...["Figure or setting", "A: " + x.label, "B: " + y.label, "A / B"].map((text) => el("th", { scope: "col" }, text)));
  const values = D.metrics.filter((m) => x.values[m.column] && y.values[m.column]).map((m) => {
    const [v, w] = [x.values[m.column], y.values[m.column]];
    return el("tr", {}, el("th", { scope: "row" }, m.words), el("td", {}, withSpan(v)), el("td", {}, withSpan(w)), el("td", {}, w[0] ? (v[0] / w[0]).toFixed(3) : "–"));
  });
  const facts = Object.entries(FACTS).filter(([name]) => x[name] !== y[name]).map(([name, words]) =>
    el("tr", {}, el("th", { scope: "row" }, words), el("td", {}, String(x[name] ?? "–")), el("td", {}, String(y[name] ?? "–")), el("td", {}, "differs")));
  const why = reasons.length ? el("ul", {}, ...reasons.map((reason) => el("li", {}, reason))) : null;
  const table = el("div", { class: "table-scroll", tabindex: "0" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...values, ...facts)));
  return el("div", { class: "compare-two" }, el("p", { class: "compare-said" }, sentence), why, table, inShell(x, y));
}

function inShell(x, y) { // null where a set has no hash of a request, as an imported log
  if (!x.hash || !y.hash) return null;
  const where = x.id === y.id ? ` --where study=${x.id}` : "";
  const word = (one) => `spec_hash=${one.hash}${one.framework ? `,framework=${one.framework}` : ""}`;
  const command = `llmbench compare ${word(x)} ${word(y)}${where} --results DIR`;
  if (!/^[\w.,=/ -]*$/.test(command)) return null; // a name that a shell would read in another way
  return el("p", { class: "compare-note" }, "The same in a shell: ", el("code", {}, command));
}

function draw() {
  const focus = document.activeElement && document.activeElement.getAttribute("aria-label"), id = document.activeElement && document.activeElement.id;
  root.replaceChildren(form(), two(), list());
  const again = id ? document.getElementById(id) : focus && [...root.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focus);
  if (again) again.focus({ preventScroll: true });
}

fromAddress();
draw();
addEventListener("hashchange", () => { fromAddress(); draw(); });
})();
