// The page Plan: fields, drawings and tables. State is what stands in the fields; it is in the address.

const LABELS = {
  model: "Model", card: "Accelerator", framework: "Framework family", precision: "Precision", gpus: "GPUs",
  tokens: "Tokens per step", seq: "Sequence length", training: "Training tokens", network: "Network (GB/s per GPU)",
  tp: "tp, tensor parallel", pp: "pp, pipeline stages", vpp: "vpp, chunks per stage", cp: "cp, context parallel",
  ep: "ep, expert parallel", micro_batch: "Micro batch", recompute: "Recomputation", zero_stage: "Sharding",
  price: "Price (USD per GPU hour)", power_w: "Power per GPU (W)", power_price: "Electricity (USD per kWh)",
  mtbf: "MTBF of a node (hours)", restart: "Restart (s)", write: "Storage, writing (GB/s)", read: "Storage, reading (GB/s)",
  asynchronous: "Checkpoints in the background",
  n_layer: "Layers", d_model: "Width", n_head: "Heads", n_kv_head: "Key and value heads", qk_dim: "Columns per head, queries",
  v_dim: "Columns per head, values", vocab: "Vocabulary", d_ff: "Columns of the MLP", matrices: "Matrices of an MLP (3 if gated)",
  n_expert: "Experts (0: dense)", experts_per_token: "Experts per token", moe_d_ff: "Columns of an expert",
  shared_d_ff: "Columns of shared experts", n_dense_layer: "Dense layers of a mixture", q_rank: "Rank of queries (0: none)",
  kv_rank: "Rank of keys and values (0: none)", mtp_layers: "Layers for further tokens",
};
const OWN = ["n_layer", "d_model", "n_head", "n_kv_head", "qk_dim", "v_dim", "d_ff", "vocab", "matrices", "n_expert",
  "experts_per_token", "moe_d_ff", "shared_d_ff", "n_dense_layer", "q_rank", "kv_rank", "mtp_layers"];
const SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
  12288, 16384, 24576, 32768, 65536, 100000];
const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));
const DEFAULTS = {
  model: "llama3.1-70b", card: "H100 SXM", framework: "megatron", precision: "bf16", gpus: "256", tokens: "4M", seq: "8192",
  training: "2T", network: "", tp: "1", pp: "1", vpp: "1", cp: "1", ep: "1", micro_batch: "1", recompute: "none", zero_stage: "1",
  price: "", power_w: "", power_price: "0.10", mtbf: "", restart: "", write: "", read: "", asynchronous: "no",
};
const FORMS = [
  ["Training", ["model", "own", "framework", "precision", "gpus", "tokens", "seq", "training"]],
  ["Machine", ["card", "network"]],
  ["Layout", ["tp", "pp", "vpp", "cp", "ep", "micro_batch", "recompute", "zero_stage"]],
  ["Price and power", ["price", "power_w", "power_price"]],
  ["Failures and checkpoints", ["mtbf", "restart", "write", "read", "asynchronous"]],
];
const CHOICES = {
  framework: () => M.FAMILIES.map((name) => [name, name]),
  precision: () => Object.keys(FORMATS).map((name) => [name, name]),
  recompute: () => Object.keys(RECOMPUTE).map((name) => [name, name]),
  zero_stage: () => [["1", "optimizer state (ZeRO-1)"], ["3", "parameters, too (FSDP, ZeRO-3)"]],
  card: () => D.cards.map((card) => [card.name, `${card.name}, ${significant(card.memory_gb, 4)} GB`]),
  asynchronous: () => [["no", "no"], ["yes", "yes"]],
};
const LAYOUT = FORMS[2][1];

const root = document.getElementById("plan");
const $ = (name) => root.querySelector(`[data-field="${name}"]`);
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
function drawn(tag, properties = {}, ...children) { // an element of a drawing
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ---- state and address
let state = { ...DEFAULTS }, follow = true, question = null, answer = null, best = null, problem = null, turn = 0;

function usual(s) { // what an empty field stands for
  const card = D.cards.find((one) => one.name === s.card), { failures, restart, storage } = K.cluster;
  return {
    price: card?.usd ?? "", power_w: card?.tdp_w ?? "", mtbf: failures.node_mtbf_h, write: storage.write_gb_s,
    read: s.write.trim() === "" ? storage.read_gb_s : counted(s.write), // as it writes, unless told otherwise
    restart: restart.notice_s + restart.start_s + restart.warmup_s,
  };
}

function withDefaults(s) {
  const made = { ...s };
  for (const [name, value] of Object.entries(usual(s))) if (made[name].trim() === "") made[name] = String(value);
  return made;
}

function ownFrom(shape) {
  return Object.fromEntries(OWN.map((name) => [name, String(shape[name] ?? 0)]));
}

function fromAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  state = { ...DEFAULTS };
  const model = D.models.find((one) => one.name === DEFAULTS.model);
  Object.assign(state, ownFrom(model.shape));
  for (const [name, value] of found) if (name in state) state[name] = value.slice(0, 60);
  for (const [name, choices] of [["model", D.models], ["card", D.cards]]) state[name] = named(choices, state[name])?.name ?? state[name];
  follow = !LAYOUT.some((name) => found.has(name));
}

function toAddress() {
  const found = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS)) {
    if (LAYOUT.includes(name) ? !follow : state[name] !== DEFAULTS[name]) found.set(name, state[name]);
  }
  if (state.model === "own") for (const name of OWN) found.set(name, state[name]);
  const text = found.toString();
  clearTimeout(toAddress.later);
  try {
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  } catch (error) { // a browser that allows only some changes per second
    toAddress.later = setTimeout(toAddress, 1000);
  }
}

// ---- fields
function selectField(name) {
  const box = el("select", { id: "plan-" + name, "data-field": name, onchange: () => changed(name, box.value) });
  if (name === "model") {
    box.append(el("option", { value: "own" }, "own integers …"));
    for (const group of ["Presets", "Published"]) {
      box.append(el("optgroup", { label: group }, ...D.models.filter((m) => m.group === group).map((m) => el("option", { value: m.name }, m.name))));
    }
  } else box.append(...CHOICES[name]().map(([value, text]) => el("option", { value }, text)));
  const wide = ["model", "card", "zero_stage"].includes(name) ? " is-wide" : "";
  return el("div", { class: "plan-field" + wide }, el("label", { for: box.id }, LABELS[name]), box);
}

function textField(name, slider) {
  const box = el("input", { id: "plan-" + name, "data-field": name, type: "text", inputmode: "decimal", autocomplete: "off",
    spellcheck: "false", oninput: () => changed(name, box.value) });
  const parts = [el("label", { for: box.id }, LABELS[name]), box];
  if (slider) {
    const range = el("input", { type: "range", min: "0", step: "1", "data-slider": name, "aria-label": LABELS[name] + ", slider",
      oninput: () => changed(name, String(sliderValues(name)[Number(range.value)])) });
    parts.push(range);
  }
  return el("div", { class: slider ? "plan-field has-slider" : "plan-field" }, ...parts);
}

function sliderValues(name) {
  if (name === "gpus") return SIZES;
  if (name === "tokens") return powers(16, 28);
  if (name === "seq") return powers(9, 20);
  if (question) return M.options(question.fixed, question.gpus)[name];
  return name === "micro_batch" ? [1, 2, 4, 8] : [1];
}

const SLIDERS = new Set(["gpus", "tokens", "seq", "tp", "pp", "vpp", "cp", "ep", "micro_batch"]);
function fieldOf(name) {
  if (name === "own") {
    return el("div", { class: "plan-own", hidden: "" }, ...OWN.map((one) => textField(one, false)));
  }
  return name === "model" || name in CHOICES ? selectField(name) : textField(name, SLIDERS.has(name));
}

function form() {
  const small = matchMedia("(max-width: 899px)").matches;
  const made = FORMS.map(([title, names], i) =>
    el("details", small && i > 0 ? {} : { open: "" }, el("summary", {}, title), ...names.map(fieldOf)));
  made[2].append(el("p", { class: "plan-follow" },
    el("label", {}, el("input", { type: "checkbox", "data-follow": "", onchange: (event) => { follow = event.target.checked; update(); } }),
      " follow the fastest layout that fits")));
  return el("form", { class: "plan-form", "aria-label": "What to plan", onsubmit: (event) => event.preventDefault() }, ...made,
    el("p", {}, el("button", { type: "button", onclick: () => { location.hash = ""; fromAddress(); update(); } }, "Reset all")));
}

function showFields() {
  for (const name of [...Object.keys(DEFAULTS), ...OWN]) {
    const box = $(name);
    if (box && box !== document.activeElement && box.value !== state[name]) box.value = state[name];
  }
  root.querySelector(".plan-own").hidden = state.model !== "own";
  root.querySelector("[data-follow]").checked = follow;
  const card = D.cards.find((one) => one.name === state.card);
  const network = card && M.known_machine(known(K.machine, card.machine)).network_gbs;
  for (const [name, value] of Object.entries({ ...usual(state), network: network ?? "" })) {
    $(name).placeholder = value === "" ? "unknown" : significant(value, 4);
  }
  for (const range of root.querySelectorAll("[data-slider]")) {
    const values = sliderValues(range.dataset.slider), value = counted(state[range.dataset.slider], BINARY.has(range.dataset.slider));
    let place = 0;
    values.forEach((one, i) => { if (Math.abs(Math.log(one / value)) < Math.abs(Math.log(values[place] / value))) place = i; });
    range.max = String(values.length - 1);
    range.value = String(place);
    range.disabled = values.length < 2;
    range.setAttribute("aria-valuetext", String(values[place]));
  }
  showAsked();
}

function showAsked() { // for paper, on which there is no form
  const valueOf = (box) => (box.tagName === "SELECT" ? box.selectedOptions[0]?.textContent ?? state[box.dataset.field] : box.value.trim() || `${box.placeholder} (${box.dataset.field === "read" && state.write.trim() ? "as it writes" : "usual"})`);
  const shown = (names) => names.filter((name) => name !== "own").map((name) => `${LABELS[name]}: ${valueOf($(name))}`).join("; ");
  const own = state.model === "own" ? [["Own integers", OWN]] : [];
  const layout = follow ? " (the fastest that fits)" : "";
  part("asked").replaceChildren(el("h2", {}, "What was asked"), ...[...FORMS, ...own].map(([title, names]) =>
    el("p", {}, el("b", {}, `${title}${title === "Layout" ? layout : ""}. `), shown(names) + ".")));
}

function changed(name, value) {
  if (name === "model" && value === "own" && state.model !== "own") {
    const model = D.models.find((one) => one.name === state.model);
    if (model) Object.assign(state, ownFrom(model.shape));
  }
  if (name === "card") Object.assign(state, { price: "", power_w: "", network: "" });
  state[name] = value;
  if (LAYOUT.includes(name)) follow = false;
  update();
}

function take(c) {
  for (const name of DEGREES) state[name] = String(c[name]);
  state.recompute = Object.keys(RECOMPUTE).find((name) => RECOMPUTE[name] === c.recompute);
}

// ---- drawings
const TERM_COLOURS = { weights: 1, gradients: 2, optimizer: 3, activations: 4, working: 5, loss: 6, gathered: 7, buckets: 8, pipeline: 9, allocator: 10, driver: 11 };
const PART_COLOURS = { products: 1, attention: 2, "head and loss": 3, "memory-bound": 4, casts: 5, "weights read": 6, "tensor parallel": 7,
  "context parallel": 8, experts: 9, routing: 10, gathering: 12, "pipeline sends": 13, gradients: 14, bubble: 11, uneven: 10, launches: 5, update: 6, fixed: 11 };

function stacked(pairs, end, colours, unit, words, marks = []) {
  const shown = pairs.filter(([, value]) => value > 0).sort((one, other) => other[1] - one[1]);
  const whole = shown.reduce((sum, [, value]) => sum + value, 0);
  const bar = el("div", { class: "plan-bar", role: "img", "aria-label": words },
    ...shown.map(([name, value]) => el("span", { class: "plan-part colour-" + colours[name], style: `width:${(100 * value) / end}%`,
      title: `${name}: ${significant(value)} ${unit}, ${significant((100 * value) / whole)} %` })),
    ...marks.map(([value, text]) => el("span", { class: "plan-mark" + (value > 0.7 * end ? " at-end" : ""), style: `left:${(100 * value) / end}%` }, el("em", {}, text))));
  const large = shown.filter(([, value]) => value >= 0.005 * whole), small = shown.length - large.length;
  const rest = whole - large.reduce((sum, [, value]) => sum + value, 0);
  const legend = el("ul", { class: "plan-legend" }, ...large.map(([name, value]) => el("li", {},
    el("span", { class: "plan-swatch colour-" + colours[name], "aria-hidden": "true" }), el("span", {}, name),
    el("b", {}, `${significant(value)} ${unit}`), el("span", { class: "plan-share" }, `${significant((100 * value) / whole, 2)} %`))),
  small ? el("li", { class: "plan-rest" }, el("span", { class: "plan-swatch" }), el("span", {}, `${small} more`), el("b", {}, `${significant(rest, 2)} ${unit}`), el("span")) : null);
  return [bar, legend];
}

const TICKS = [[60, "1 min"], [300, "5 min"], [1800, "30 min"], [7200, "2 h"], [28800, "8 h"], [86400, "1 day"]];
function goodputCurve(found) {
  const { good, step } = found, mtbf = 3600 * good.job_mtbf_h;
  const [width, height, left, bottom, top, right] = [640, 220, 46, 30, 12, 30];
  const from = Math.max(step, 30), to = Math.max(86400, 4 * good.interval_s, 10 * from);
  const points = Array.from({ length: 81 }, (_, i) => {
    const interval = from * (to / from) ** (i / 80);
    return [interval, M.shares_of(interval, good.save_blocking_s, good.restart_s, mtbf, good.save_background_s, 0).goodput];
  });
  const high = Math.max(good.goodput, ...points.map(([, y]) => y)), low = Math.min(...points.map(([, y]) => y));
  const floor = Math.max(0, high - Math.max(0.05, Math.min(1, (high - low) * 1.05)));
  const x = (interval) => left + ((width - left - right) * Math.log(interval / from)) / Math.log(to / from);
  const y = (value) => top + ((height - top - bottom) * (high + 0.01 - Math.max(value, floor))) / (high + 0.01 - floor);
  const line = points.map(([interval, value]) => `${x(interval).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const grid = [0, 1, 2, 3].map((i) => floor + ((high - floor) * i) / 3);
  const dot = [x(Math.max(good.interval_s, from)), y(good.goodput)];
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "plan-curve",
    "aria-label": `Goodput against the interval between checkpoints; the best is ${significant(good.goodput)} at ${timeText(good.interval_s)}` },
  ...grid.flatMap((value) => [drawn("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }),
    drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2))]),
  ...TICKS.filter(([seconds]) => seconds >= from && seconds <= to).map(([seconds, text]) => drawn("text", { x: x(seconds), y: height - 10, "text-anchor": "middle" }, text)),
  drawn("polyline", { points: line, class: "line" }), drawn("circle", { cx: dot[0], cy: dot[1], r: 5, class: "dot" }));
}

// ---- words
function timeText(seconds) {
  if (!Number.isFinite(seconds)) return "never";
  if (seconds < 100) return `${significant(seconds)} s`;
  if (seconds < 5400) return `${significant(seconds / 60)} min`;
  return seconds < 172800 ? `${significant(seconds / 3600)} h` : `${significant(seconds / 86400)} days`;
}

function money(usd) {
  if (!Number.isFinite(usd ?? NaN)) return "–";
  return usd >= 1e6 ? `$${significant(usd / 1e6)} M` : `$${significant(usd)}`;
}

function fitBadge(chance) { // a layout fits from the least chance on, and surely from a higher one
  const share = chance > 0.995 ? "> 0.99" : chance < 0.005 ? "< 0.01" : chance.toFixed(2), { least, sure } = K.fits;
  const surely = chance >= sure || chance < 1 - sure, word = chance >= least ? "fits" : "does not fit";
  return el("span", { class: "badge " + (!surely ? "unknown" : chance >= least ? "yes" : "no") }, `${surely ? "" : "probably "}${word} (chance ${share})`);
}

function cardBox(title, big, unit, ...lines) {
  return el("div", { class: "card" }, el("h2", {}, title), el("span", { class: "big-number" }, big, unit ? el("span", { class: "unit" }, unit) : null),
    ...lines.filter(Boolean).map((line) => el("p", {}, line)));
}

function spanText(found, value, digits, unit) {
  return `P10 to P90: ${significant(value / found.factor80, digits)} to ${significant(value * found.factor80, digits)} ${unit}`;
}

// ---- what is shown
function part(name) { return root.querySelector(`[data-part="${name}"]`); }

const buttonsOf = (what, values, click) => el("p", {}, what + ": ", ...values.map((value) =>
  el("button", { type: "button", onclick: () => { click(value); part("summary").focus(); } }, commas(value))));

function showProblem(text, fixes = [], unfit = 0) {
  root.classList.add("has-problem");
  problem = { text, fixes, unfit };
  drawProblem();
  part("now").replaceChildren("Not possible: " + text);
}

function drawProblem() { // again when the search has ended: only then is known what can be taken
  const { text, fixes, unfit } = problem, some = best?.found.best.length > 0, others = helpOf();
  const offered = fixes.map(([name, values]) => buttonsOf(LABELS[name], values, (value) => { state[name] = String(value); follow = false; update(); }));
  const more = unfit > 0 ? `${fixes.length ? "Other" : "Some"} changes of one setting break no rule, but do not fit in the memory.` : "";
  part("problem").replaceChildren(el("p", { class: "plan-why" }, el("b", {}, "Not possible: "), text + "."),
    ...(offered.length ? [el("p", {}, "One of these changes makes it possible:"), ...offered] : []),
    ...(more ? [el("p", {}, more)] : []),
    ...(question && !best ? [el("p", {}, "Looking for layouts that fit …")] : []),
    ...(some ? [el("p", {}, el("button", { type: "button", class: "plan-main", onclick: () => { follow = true; update(); part("summary").focus(); } }, "Take the fastest layout that fits"))] : []),
    ...(best && !some ? [problem.text === whyNone() ? null : el("p", {}, `There is no layout to take instead: ${whyNone()}.`), ...others] : []).filter(Boolean));
}

function beyondWords(q, found) { // that no one published as much of this card
  const most = q.card.mfu_most;
  return most !== null && 100 * found.mfu > most ? `above the highest published MFU of this card (${most.toFixed(1)} %), so expect less` : null;
}

function peakWords(q) { // that a card without bf16 is planned by its peak in fp16
  return q.card.no_bf16 && q.state.precision === "bf16" ? "by its peak in fp16: this card has no bf16" : null;
}

function powerWords(q) { // whether the energy is a bound
  const tdp = q.card.tdp_w;
  if (q.power_w === null) return "the power of this card is not known; write it";
  if (q.power_w === tdp) return "at most: each card at its TDP";
  if (tdp === null) return null;
  return q.power_w > tdp ? `above the TDP of ${significant(tdp, 4)} W: a card alone does not take that` : `no bound: the TDP is ${significant(tdp, 4)} W`;
}

function showCards(q, found) {
  const { good } = found, ends = Number.isFinite(found.days);
  const cards = [
    cardBox("Step time (P50)", significant(found.step), "s", spanText(found, found.step, 3, "s"),
      `nine of ten: ${significant(found.step / found.factor90)} to ${significant(found.step * found.factor90)} s`),
    cardBox("Speed", significant(found.rate, 4), "tokens/s per GPU", spanText(found, found.rate, 3, ""), `MFU ${significant(100 * found.mfu)} %`, beyondWords(q, found), peakWords(q)),
    cardBox("Peak memory (P50)", significant(gib(found.total)), "GiB", fitBadge(found.chance),
      `P10 to P90: ${significant(gib(found.total / found.factor_memory))} to ${significant(gib(found.total * found.factor_memory))} GiB`,
      `usable: ${significant(gib(found.usable))} of ${significant(q.card.memory_gb, 4)} GiB`,
      found.largest > 0 ? `largest micro batch that fits: ${found.largest}` : "no micro batch fits"),
    cardBox(`Training of ${q.training >= 1e12 ? significant(q.training / 1e12) + " · 10¹²" : significant(q.training / 1e9) + " · 10⁹"} tokens`, ends ? significant(found.days) : "no end", ends ? "days" : "",
      ends ? spanText(found, found.days, 3, "days") : "failures take all the time: write a longer MTBF, a shorter restart or a faster storage",
      `with a goodput of ${good.goodput.toFixed(3)}`),
    cardBox("Cost", money(found.usd), "", found.usd === null ? "no price is known; write one" : !ends ? null : `P10 to P90: ${money(found.usd / found.factor80)} to ${money(found.usd * found.factor80)}`,
      found.usd_lasting === null ? null : `$${significant(found.usd_lasting)} per 10⁶ lasting tokens`),
    cardBox(q.power_w === null ? "Energy" : `Energy at ${significant(q.power_w, 4)} W per GPU`, found.kwh === null || !ends ? "–" : significant(found.kwh / 1000), "MWh",
      powerWords(q), found.power_usd === null ? null : `electricity: ${money(found.power_usd)}`),
  ];
  part("cards").replaceChildren(...cards);
}

const formatWords = (precision) => precision === "fp8" ? "float8" : "16 bits"; // the calibration takes bf16 and fp16 together

function showSummary(q, found) {
  const words = layoutWords(found.c, found.a.dp), which = found.inside ? "inside" : "outside";
  const where = [M.GENERATIONS[q.machine.generation], formatWords(q.state.precision), q.state.framework, found.a.n_expert > 0 ? "mixture" : "dense"].join(", ");
  part("summary").replaceChildren(
    el("p", { class: "plan-words" }, el("b", {}, words), ` · ${significant(found.a.micro_steps, 6)} micro step${found.a.micro_steps === 1 ? "" : "s"} · ${plural(q.sequences, "sequence")} of ${commas(q.seq)} tokens per step`),
    el("p", {}, fitBadge(found.chance), " ", el("span", { class: "badge " + (found.inside ? "yes" : "unknown") }, which + " the calibration"), " ",
      el("span", { class: "plan-known" }, found.inside ? `At least two publishers measured ${where}.` : `Fewer than two publishers measured ${where}: the interval is wider.`)));
  const ends = Number.isFinite(found.days);
  part("now").replaceChildren(`${significant(found.step)} s per step · ${significant(gib(found.total))} of ${significant(q.card.memory_gb, 4)} GiB · ${ends ? significant(found.days) + " days" : "no end"} · ${money(found.usd)}`);
}

function showBars(q, found) {
  const memory = M.TERMS.map((name) => [name, gib(found.memory.terms[name])]), total = gib(found.total);
  const end = 1.02 * Math.max(q.card.memory_gb, total);
  part("memory").replaceChildren(...stacked(memory, end, TERM_COLOURS, "GiB",
    `Peak memory of the fullest rank: ${significant(total)} GiB of ${significant(q.card.memory_gb, 4)} GiB`,
    [[gib(found.usable), `usable ${significant(gib(found.usable))}`], [q.card.memory_gb, "card"]].filter(([at]) => Number.isFinite(at))));
  const steps = M.PARTS.map((name) => [name, found.parts[name]]);
  part("step").replaceChildren(...stacked(steps, found.step, PART_COLOURS, "s", `Where the ${significant(found.step)} s of a step go`));
}

function showGoodput(found) {
  const { good } = found, share = (value) => `${significant(100 * value, 2)} %`;
  part("goodput").replaceChildren(el("p", {},
    `A checkpoint every ${timeText(good.interval_s)} (${plural(good.interval_steps, "step")}) keeps ${significant(100 * good.goodput)} % of the wall time. `
    + `The job fails every ${timeText(3600 * good.job_mtbf_h)}; a restart takes ${timeText(good.restart_s)}, a save stops the training for ${timeText(good.save_blocking_s)}. `
    + `Lost: ${share(good.share_saves)} to saves, ${share(good.share_lost_steps)} to repeated steps, ${share(good.share_restarts)} to restarts.`),
  goodputCurve(found));
}

function tableOf(words, heads, rows) {
  return el("div", { class: "table-scroll", role: "region", "aria-label": words, tabindex: "0" },
    el("table", { class: "no-sort" }, el("thead", {}, el("tr", {}, ...heads.map(([text, kind]) => el("th", { scope: "col", class: kind ?? "" }, text)))), el("tbody", {}, ...rows)));
}
const cells = (row, heads) => row.map((value, i) => el("td", { class: heads[i][1] ?? "" }, value ?? "–"));

const NEAR_HEADS = [["Model"], ["Accelerator"], ["GPUs", "num"], ["Length", "num"], ["tp·pp·cp·ep", "num"], ["Format"], ["Measured tokens/s per GPU", "num"], ["Predicted, publisher left out", "num"], ["MFU (%)", "num"], ["Row"]];
function showNear(q, found) {
  const rows = nearest(q, found).map((row) => el("tr", {}, ...cells([row.model, row.accelerator, commas(row.world_size), commas(row.seq_len),
    [row.tp, row.pp, row.cp, row.ep].map((degree) => degree ?? "?").join("·"), row.precision ?? "?", significant(row.tokens_per_s_per_gpu, 4),
    row.predicted === null ? null : significant(row.predicted, 4), row.mfu_pct === null ? null : significant(row.mfu_pct), row.link ? el("a", { href: row.link, rel: "noopener" }, row.row_id) : row.row_id], NEAR_HEADS)));
  const note = "Predicted: tokens/s per GPU of that row by this planner, with constants that never saw its publisher; a dash where no prediction could be made.";
  part("near").replaceChildren(...rows.length ? [tableOf("Published rows that come near", NEAR_HEADS, rows), el("p", {}, note)] : [el("p", {}, "No published rows are on this site.")]);
}

function showCommand(q, found) {
  const command = commandOf(q, found.c), rows = best?.found.best ?? [];
  if (!command) {
    part("command").replaceChildren(el("p", {}, "The command takes a model by its name, so own integers have none. A preset is one row of the table of presets."));
    return;
  }
  const sure = rows.find((row) => row.chance >= K.fits.sure), here = (row) => row && DEGREES.every((name) => row.c[name] === found.c[name]);
  const surely = here(sure) && sure !== rows[0]; // the first of the table with --surely
  part("command").replaceChildren(el("p", {}, surely ? "The table of what surely fits, with this layout first:" : "The table of the best layouts:"),
    ...copied(tableCommandOf(q, surely), "table"), el("p", {}, "This layout alone:"), ...copied(command, "layout"),
    found.chance < K.fits.least ? el("p", {}, "The command refuses this layout, because it does not fit.") : "");
}

function copied(command, what) { // a command with a button that copies it
  const options = command.split(/ (?=--)/).flatMap((text, i) => [i ? " " : "", el("span", { class: "plan-option" }, text)]);
  const code = el("code", {}, ...options), copy = el("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(command); copy.textContent = "Copied"; } catch (error) {
      getSelection().selectAllChildren(code); copy.textContent = "Selected";
    }
  } }, "Copy");
  return [el("pre", { tabindex: "0", "data-command": what, "aria-label": what === "table" ? "The command of the table" : "The command of this layout" }, code), copy];
}

// ---- the best layouts
const BEST_HEADS = [["#", "num"], ["Step (s)", "num"], ["Layout"], ["Tokens/s per GPU", "num"], ["Peak (GiB)", "num"], ["Chance to fit", "num"], ["USD per 10⁶ lasting tokens", "num"], ["Faster than 1?", "num"]];
function lastingUsd(q, row) { // USD for 10⁶ tokens that no failure loses, as in llmbench plan
  const a = layoutOf(q, row.c), good = M.goodput_of(q.gpus, M.parameters_of_shape(a), row.step, clusterOf(q, a));
  return M.per_1m_tokens(q.price, 1, row.rate, good.goodput);
}

function showBest() {
  const box = part("best"), buttons = Array.from(box.querySelectorAll(".plan-take")), focused = buttons.indexOf(document.activeElement);
  box.classList.toggle("is-old", !best);
  box.setAttribute("aria-busy", String(!best));
  if (!best) { // the table of the last settings stays, pale, until the new one is there
    if (!buttons.length) box.replaceChildren(el("p", {}, "Looking at all layouts …"));
    return;
  }
  const q = question, { found } = best;
  if (!found.best.length) {
    if (follow) showProblem(whyNone());
    else if (problem) drawProblem();
    const why = whyNone();
    box.replaceChildren(el("p", {}, why[0].toUpperCase() + why.slice(1) + "."), ...(problem ? [] : helpOf()));
    return;
  }
  if (problem) drawProblem();
  const rows = found.best.map((row, i) => {
    const here = DEGREES.every((name) => row.c[name] === answer?.c[name]);
    const button = el("button", { type: "button", class: "plan-take", "aria-pressed": String(here), onclick: () => { take(row.c); follow = false; update(); } },
      layoutWords(row.c, q.gpus / (row.c.tp * row.c.pp * row.c.cp)));
    row.usd = q.price === null ? null : lastingUsd(q, row);
    const usd = row.usd === null ? null : aligned(row.usd);
    return el("tr", here ? { class: "is-here" } : {}, ...cells([String(i + 1), aligned(row.step), button, significant(row.rate, 4),
      aligned(gib(row.peak)), row.chance >= K.fits.sure ? row.chance.toFixed(2) : el("span", { class: "badge unknown" }, row.chance.toFixed(2)), usd, i ? row.worse.toFixed(2) : ""], BEST_HEADS));
  });
  const same = found.best.slice(1).filter((row) => row.worse >= 0.1).length;
  const { least, sure } = K.fits, unsure = found.best.filter((row) => row.chance < sure).length;
  const surely = unsure && found.best[0].chance < sure ? found.best.find((row) => row.chance >= sure) : null;
  const many = found.best.length > 1, below = unsure === 1 ? `1 of these is below ${sure} and only probably fits` : `${unsure} of these are below ${sure} and only probably fit`, left = `(llmbench plan --surely leaves ${unsure === 1 ? "it" : "them"} out)`;
  const said = `Of ${plural(found.looked, "layout")} that ${found.looked === 1 ? "was" : "were"} looked at, the ${many ? `${found.best.length} fastest that fit` : "only one that fits"} (dp: replicas, mb: sequences of a micro batch, v: stages per rank). `
    + `A layout fits, here and in llmbench plan, from a chance of ${least} on; ${unsure ? `${many ? below : `it is below ${sure} and only probably fits`} ${left}` : many ? `all of these have ${sure} or more` : `it has ${sure} or more`}. `
    + (many ? `${same} of the ${found.best.length - 1} below the first cannot be told from the first: the chance of being faster is 10 % or more. ` : "") + "Lasting tokens are those that no failure loses. A click takes a layout.";
  box.replaceChildren(el("p", {}, said),
    ...(surely ? [el("p", {}, el("button", { type: "button", class: "plan-sure", onclick: () => { take(surely.c); follow = false; update(); } }, `Take the fastest with a chance of ${sure} or more`))] : []),
    tableOf("The best layouts", BEST_HEADS, rows));
  if (answer) showCommand(q, answer); // what is printed with --surely is known now
  if (focused >= 0) box.querySelectorAll(".plan-take")[focused]?.focus();
}

function whyNone() { // why no layout can be taken
  const q = question, { looked } = best.found;
  return looked ? `${looked === 1 ? "the one layout does not fit" : `none of ${commas(looked)} layouts fits`} in ${significant(q.card.memory_gb, 4)} GB; take more GPUs, or a card with more memory`
    : `no layout on ${plural(q.gpus, "GPU")} with ${plural(q.sequences, "sequence")} per step: degrees must divide heads, layers, sequences and GPUs; change the GPUs or the tokens per step`;
}

const LONGEST_MS = 500; // of the search for changes: the page does not react meanwhile
function changesThatWork(q, longest = LONGEST_MS) { // other GPUs or tokens per step with which some layout fits; nothing is offered unseen
  const until = performance.now() + longest;
  let tried = 0, stopped = false;
  const works = (one) => {
    stopped ||= performance.now() >= until;
    if (stopped) return false;
    tried += 1;
    return candidates(one).reverse().some((c) => fitsOf(one, c));
  };
  const below = SIZES.filter((size) => size < q.gpus).reverse().slice(0, 4), above = SIZES.filter((size) => size > q.gpus).slice(0, 8);
  const sizes = [below, above].map((some) => some.find((gpus) => works({ ...q, gpus }))).filter(Boolean);
  const multiples = [Math.floor, Math.ceil].map((round) => q.gpus * round(q.sequences / q.gpus)).filter((count) => count > 0 && count !== q.sequences);
  const counts = multiples.filter((sequences) => works({ ...q, sequences, fixed: { ...q.fixed, sequences }, base: { ...q.base, global_sequences: sequences } }));
  const offers = [["gpus", sizes], ["tokens", counts.map((count) => count * q.seq)]].filter(([, values]) => values.length);
  return { offers, tried, stopped, all: below.length + above.length + multiples.length };
}

function stoppedWords({ tried, stopped, all }, longest = LONGEST_MS) {
  return stopped ? `The search for changes was stopped after ${longest / 1000} s: ${tried} of ${plural(all, "change")} tried.` : "";
}

function helpOf() { // the buttons of those changes, once the search has found no layout
  if (!question || !best || best.found.best.length) return [];
  best.help ??= changesThatWork(question);
  const { offers } = best.help, stopped = stoppedWords(best.help);
  const change = (name) => (value) => { follow = true; changed(name, String(value)); };
  return [...(offers.length ? [el("p", {}, "With one of these changes the fastest layout that fits can be taken:")] : []),
    ...offers.map(([name, values]) => buttonsOf(LABELS[name], values, change(name))), ...(stopped ? [el("p", {}, stopped)] : [])];
}

function search() {
  const mine = (turn += 1), key = searchKey(question);
  if (best && best.key === key) { if (follow) followBest(); showBest(); return; }
  best = null;
  showBest();
  const run = searching(question);
  const slice = () => {
    if (mine !== turn) return;
    const until = performance.now() + 30;
    let next = run.next();
    while (!next.done && performance.now() < until) next = run.next();
    if (!next.done) { setTimeout(slice); return; }
    best = { key, found: next.value };
    if (follow) followBest();
    showBest();
    toAddress();
  };
  setTimeout(slice);
}

const searchKey = (q) => JSON.stringify([q.shape, q.card.name, q.gpus, q.sequences, q.seq, q.fixed.settings, q.machine.network_gbs]);

function followBest() {
  const first = best.found.best[0];
  if (!first || (answer && DEGREES.every((name) => first.c[name] === answer.c[name]))) return;
  take(first.c);
  showAnswer();
  showFields();
}

// ---- one turn: read, answer, show
function showAnswer() {
  answer = null;
  const c = chosenLayout(state), broken = M.broken_rule(c, question.fixed, question.gpus);
  if (broken) {
    if (follow && !(best && !best.found.best.length)) return; // the search is about to choose another
    const names = DEGREES.filter((name) => name !== "recompute");
    const allowed = names.map((name) => [name, M.possible_values(c, question.fixed, question.gpus, name).filter((value) => value !== c[name])]);
    const fixes = allowed.map(([name, values]) => [name, values.filter((value) => fitsOf(question, { ...c, [name]: value }))]);
    const count = (some) => some.reduce((sum, [, values]) => sum + values.length, 0);
    showProblem(broken, fixes.filter(([, values]) => values.length), count(allowed) - count(fixes));
    return;
  }
  answer = answerOf(question, c);
  root.classList.remove("has-problem");
  problem = null;
  part("problem").replaceChildren();
  showSummary(question, answer);
  showCards(question, answer);
  showBars(question, answer);
  showGoodput(answer);
  showNear(question, answer);
  showCommand(question, answer);
}

function update() {
  turn += 1;
  try {
    question = questionOf(withDefaults(state));
    showFields();
    showAnswer();
    search();
  } catch (error) {
    if (!(error instanceof Refused)) throw error; // a fault of the page, which the console shows
    question = answer = best = null;
    showFields();
    showProblem(error.message);
    part("best").replaceChildren();
  }
  toAddress();
}

const SECTIONS = [["summary"], ["problem"], ["cards"], ["memory", "Memory of the fullest rank"], ["step", "Where a step goes"],
  ["best", "The 20 best layouts"], ["goodput", "Failures and checkpoints"], ["near", "Nearest published measurements"], ["command", "The same on the command line"]];
root.replaceChildren(form(), el("div", { class: "plan-answer" }, el("div", { class: "plan-asked", "data-part": "asked" }), ...SECTIONS.map(([name, title]) =>
  el("section", { class: "plan-" + name, ...(title ? { "aria-labelledby": "plan-title-" + name } : {}) },
    title ? el("h2", { id: "plan-title-" + name }, title) : null, el("div", { "data-part": name, ...(name === "cards" ? { class: "cards" } : {}), ...(name === "problem" ? { role: "alert" } : {}), ...(name === "summary" ? { tabindex: "-1" } : {}) })))),
el("p", { class: "plan-now", "data-part": "now", role: "status" }));
fromAddress();
update();
addEventListener("hashchange", () => { fromAddress(); update(); });
window.llmbenchPlan = { D, K, M, answerOf, searched, questionOf, withDefaults, known, commandOf, tableCommandOf, named, chosenLayout, state: () => state, question: () => question, answer: () => answer, best: () => best, changesThatWork, stoppedWords };
