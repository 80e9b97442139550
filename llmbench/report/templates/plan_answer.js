// What the page Plan answers: one layout, the best layouts, the nearest published rows, the command.
// Formulas are those of M, translated from Python when the site is built; K has their constants.

const DEGREES = ["tp", "pp", "vpp", "cp", "ep", "micro_batch", "recompute", "zero_stage"];
const RECOMPUTE = { none: 0, selective: 0.5, full: 1 };
const FORMATS = { bf16: 0, fp16: 0, fp8: 1, nvfp4: 2 };
const LIMITS = { // least and most of what is typed, and its unit; whole: a whole number
  gpus: [1, 1e6, "", true], tokens: [1, 1e12, "tokens", true], seq: [1, 1e8, "tokens", true],
  training: [1, 1e18, "tokens"], network: [0.01, 1e5, "GB/s"], price: [0.0001, 1e4, "USD per hour"],
  power_w: [0.1, 1e5, "W"], power_price: [0.0001, 100, "USD per kWh"], mtbf: [0.01, 1e9, "hours"],
  restart: [0.1, 1e6, "s"], write: [0.001, 1e6, "GB/s"], read: [0.001, 1e6, "GB/s"],
  tp: [1, 1024, "", true], pp: [1, 1024, "", true], vpp: [1, 1024, "", true], cp: [1, 1024, "", true],
  ep: [1, 4096, "", true], micro_batch: [1, 1024, "sequences", true],
  n_layer: [1, 1000, "", true], d_model: [1, 1e6, "", true], n_head: [1, 4096, "", true],
  n_kv_head: [1, 4096, "", true], qk_dim: [1, 4096, "", true], v_dim: [1, 4096, "", true],
  vocab: [1, 1e7, "", true], d_ff: [0, 1e7, "", true], matrices: [2, 3, "", true], n_expert: [0, 4096, "", true],
  experts_per_token: [0, 1024, "", true], moe_d_ff: [0, 1e7, "", true], shared_d_ff: [0, 1e7, "", true],
  n_dense_layer: [0, 1000, "", true], q_rank: [0, 1e5, "", true], kv_rank: [0, 1e5, "", true],
  mtp_layers: [0, 16, "", true],
};
const BINARY = new Set(["tokens", "seq"]);

class Refused extends Error {} // what the reader asked for is not possible

// ---- numbers as they are typed and shown
function counted(text, binary) {
  // a comma stands before three digits: "2,5" is not read, where "2.5" was meant
  const found = /^(\d{1,3}(?:,\d{3})+(?:\.\d*)?|(?:\d+\.?\d*|\.\d+)(?:e\d+)?)\s*([kmbgt]?)$/i.exec(String(text).trim());
  const power = found && { "": 0, k: 1, m: 2, b: 3, g: 3, t: 4 }[found[2].toLowerCase()];
  return found ? Number(found[1].replace(/,/g, "")) * (binary ? 1024 : 1000) ** power : NaN;
}

function significant(x, digits = 3) {
  return Number.isFinite(x) ? x.toLocaleString("en-US", { maximumSignificantDigits: digits }) : "–";
}

function aligned(x) { // three digits in a column: 0.989, 1.00, 14.4, 1,180
  if (!Number.isFinite(x)) return "–";
  return x < 1000 && x >= 0.001 ? x.toPrecision(3) : significant(x, 4);
}

const gib = (bytes) => bytes / 2 ** 30;
const plural = (count, noun) => `${commas(count)} ${noun}${count === 1 ? "" : "s"}`;
const commas = (x) => Math.round(x).toLocaleString("en-US");

function checked(name, text) {
  const [least, most, unit, whole] = LIMITS[name];
  const value = counted(text, BINARY.has(name));
  if (value >= least && value <= most && (!whole || value % 1 === 0)) return value;
  const kind = whole ? "a whole number" : "a number";
  throw new Refused(`${LABELS[name] ?? name} “${text}”: write ${kind} from ${significant(least)} to ${commas(most)}${unit && " " + unit}`);
}

// ---- the question: checked numbers of what stands in the fields
function known(defaults, given) {
  const made = {};
  for (const name in defaults) {
    const value = given[name] ?? defaults[name];
    made[name] = value === null ? NaN : value;
  }
  return made;
}

const plainName = (text) => String(text).toLowerCase().replace(/[^\p{L}\p{N}]/gu, ""); // as plain_name of the command
function named(choices, text) { // the one of that name, in whatever spelling; undefined for none or several
  const alike = choices.filter((one) => plainName(one.name) === plainName(text));
  return choices.find((one) => one.name === text) ?? (alike.length === 1 ? alike[0] : undefined);
}

function shapeOf(s) {
  if (s.model !== "own") {
    const found = named(D.models, s.model);
    if (!found) throw new Refused(`model “${s.model}”: the page does not know it; pick one, or write its own integers`);
    return found.shape;
  }
  const shape = {};
  for (const name of OWN) shape[name] = checked(name, s[name]);
  if (!shape.n_expert) Object.assign(shape, { experts_per_token: 0, moe_d_ff: 0, shared_d_ff: 0, n_dense_layer: 0 });
  if (shape.n_expert && !shape.moe_d_ff) throw new Refused("width of an expert 0: a mixture needs one; write its columns, or 0 experts");
  if (shape.n_expert && !shape.experts_per_token) throw new Refused("experts per token 0: a token takes at least 1 of the experts; write how many, or 0 experts");
  if (shape.experts_per_token > shape.n_expert) throw new Refused(`experts per token ${shape.experts_per_token}: there are ${shape.n_expert} experts; write fewer`);
  if (!shape.n_expert && !shape.d_ff) throw new Refused("width of the MLP 0: a dense model needs one; write its columns, or a number of experts");
  if (shape.n_head % shape.n_kv_head !== 0) throw new Refused(`key and value heads ${shape.n_kv_head}: they do not divide the ${shape.n_head} heads; write a divisor`);
  if (shape.n_dense_layer >= shape.n_layer) throw new Refused(`dense layers ${shape.n_dense_layer}: a mixture of ${shape.n_layer} layers has fewer; write a smaller number`);
  return shape;
}

function picked(table, name, what) {
  if (!(name in table)) throw new Refused(`${what} “${name}”: allowed are ${Object.keys(table).join(", ")}`);
  return table[name];
}

function questionOf(s) {
  const card = D.cards.find((one) => one.name === s.card);
  if (!card) throw new Refused(`accelerator “${s.card}”: the page does not know it; allowed are ${D.cards.map((one) => one.name).join(", ")}`);
  const q = { state: s, card, shape: shapeOf(s) };
  for (const name of ["gpus", "tokens", "seq", "training", "mtbf", "restart", "write", "read"]) q[name] = checked(name, s[name]);
  for (const name of ["network", "price", "power_w", "power_price"]) q[name] = String(s[name]).trim() === "" ? null : checked(name, s[name]);
  const family = M.FAMILIES.indexOf(s.framework);
  if (family < 0) throw new Refused(`framework “${s.framework}”: allowed are ${M.FAMILIES.join(", ")}`);
  q.sequences = Math.max(1, Math.round(q.tokens / q.seq));
  q.tokens = q.sequences * q.seq;
  q.machine = M.known_machine(known(K.machine, { ...card.machine, ...(q.network === null ? {} : { network_gbs: q.network }) }));
  const level = picked(FORMATS, s.precision, "precision"), peaks = [q.machine.peak_16, q.machine.peak_8, q.machine.peak_4];
  const has = (format) => peaks.slice(1, format + 1).every((peak, at) => peak > peaks[at]);
  if (!has(level)) throw new Refused(`precision “${s.precision}”: no peak of ${card.name} in it is known; allowed with this card are ${Object.keys(FORMATS).filter((name) => has(FORMATS[name]) && !(name === "bf16" && card.no_bf16)).join(", ")}`);
  const settings = { family, precision: level, memory_gb: card.memory_gb, flash: 1 };
  q.fixed = { shape: q.shape, sequences: q.sequences, seq_len: q.seq, settings, domain: Math.trunc(q.machine.domain) };
  q.base = known(K.layout, { ...q.shape, seq_len: q.seq, global_sequences: q.sequences, ...settings });
  return q;
}

// ---- one layout
function layoutOf(q, c) {
  const dp = q.gpus / (c.tp * c.pp * c.cp);
  const made = { ...q.base, ...c, dp, micro_steps: q.sequences / (dp * c.micro_batch), ranks: q.gpus };
  return M.imputed(made)[0];
}

function fitsOf(q, c) {
  const a = layoutOf(q, c);
  return M.fits(a, M.memory(a)) >= K.fits.least;
}

function chosenLayout(s) {
  const c = {};
  for (const name of ["tp", "pp", "vpp", "cp", "ep", "micro_batch"]) c[name] = checked(name, s[name]);
  c.recompute = picked(RECOMPUTE, s.recompute, "recompute");
  c.zero_stage = picked({ 1: 1, 3: 3 }, s.zero_stage, "sharding");
  return c;
}

function clusterOf(q, a) {
  const { failures, restart, storage } = K.cluster;
  return new M.Cluster(
    new M.FailureRate("own", 24000 / q.mtbf, "", "", failures.gpus_per_node),
    new M.Restart("own", q.restart, 0, 0, ""),
    new M.Storage("own", q.write, q.read, "", storage.node_write_gb_s, storage.node_read_gb_s, storage.host_gb_s, storage.copy_fixed_s),
    M.saved_state(a), q.state.asynchronous === "yes",
  );
}

function insideOf(q) {
  const key = [M.GENERATIONS[q.machine.generation], M.PRECISIONS[q.fixed.settings.precision],
    q.state.framework.replace("mlperf", "megatron"), (q.shape.n_expert ?? 0) > 0];
  return K.calibration.inside.some((row) => row.every((value, i) => value === key[i]));
}

function answerOf(q, c) {
  const a = layoutOf(q, c), memory = M.memory(a), parts = M.step_parts(a, q.machine);
  const step = Object.values(parts).reduce((sum, seconds) => sum + seconds, 0);
  const rate = M.tokens_of_layouts(a) / step / q.gpus, inside = insideOf(q), which = inside ? "inside" : "outside";
  const parameters = M.parameters_of_shape(a), good = M.goodput_of(q.gpus, parameters, step, clusterOf(q, a));
  const usd_lasting = q.price === null ? null : M.per_1m_tokens(q.price, 1, rate, good.goodput);
  const days = M.training_days(q.training, rate * q.gpus, good.goodput);
  const kwh = q.power_w === null ? null : (q.power_w * q.gpus * days * 24) / 1000;
  return {
    a, c, memory, parts, step, rate, inside, parameters, good, days, kwh,
    total: memory.total_bytes, chance: M.fits(a, memory), usable: M.usable_bytes(a),
    largest: M.largest_micro_batch(a), mfu: M.mfu_of(a, q.machine, rate),
    factor90: Math.exp(K.calibration.half_width[which]),
    factor_memory: Math.exp(1.2815515655 * K.memory.sigma), // the error of the chance to fit, at 10 and 90 %
    factor80: Math.exp(K.calibration.half_width_80[which]),
    usd_lasting, // of 10⁶ tokens that no failure loses
    usd: q.price === null ? null : q.price * q.gpus * 24 * days,
    power_usd: kwh === null || q.power_price === null ? null : kwh * q.power_price,
  };
}

// ---- the best layouts: the same candidates as the command, in the same order
function candidates(q) {
  const options = M.options(q.fixed, q.gpus), found = [];
  for (const tp of options.tp) for (const pp of options.pp) for (const vpp of options.vpp)
    for (const cp of options.cp) for (const ep of options.ep) for (const micro_batch of options.micro_batch) {
      const stages = options.zero_stage.filter((zero_stage) =>
        M.allowed({ tp, pp, vpp, cp, ep, micro_batch, recompute: 0, zero_stage }, q.fixed, q.gpus));
      if (!stages.length) continue;
      for (const recompute of options.recompute) for (const zero_stage of stages)
        found.push({ tp, pp, vpp, cp, ep, micro_batch, recompute, zero_stage });
    }
  return found;
}

const SHOWN = 20; // layouts of the table
function* searching(q, most = SHOWN) {
  const every = candidates(q), rows = [];
  for (const c of every) {
    const a = layoutOf(q, c), step = M.step_seconds(a, q.machine);
    rows.push({ c, step, rate: M.tokens_of_layouts(a) / step / q.gpus });
    if (rows.length % 256 === 0) yield rows.length;
  }
  rows.sort((one, other) => other.rate - one.rate);
  const best = [];
  for (const [i, row] of rows.entries()) { // the memory only of those that could be among the best
    const a = layoutOf(q, row.c), memory = M.memory(a), chance = M.fits(a, memory);
    if (chance >= K.fits.least) best.push({ ...row, chance, peak: memory.total_bytes });
    if (best.length >= most) break;
    if (i % 128 === 127) yield i;
  }
  for (const row of best) row.worse = M.worse_chance(Math.log(best[0].rate / row.rate));
  return { looked: every.length, best };
}

function searched(q, most) {
  const run = searching(q, most);
  let next = run.next();
  while (!next.done) next = run.next();
  return next.value;
}

// ---- what others measured near it
function nearest(q, answer, most = 8) {
  const near = D.near;
  if (!near) return [];
  const { a } = answer, at = Object.fromEntries(near.columns.map((name, i) => [name, i]));
  const ours = {
    ...near.middle, model: Math.log2(M.model_flops_per_token(a)), world_size: Math.log2(q.gpus), seq_len: Math.log2(q.seq),
    tokens_per_accelerator: Math.log2(q.tokens / q.gpus), micro_tokens: Math.log2(a.micro_batch * q.seq),
    model_parallel: Math.log2(a.tp * a.pp * a.cp), precision: a.precision, recompute: a.recompute, attention: 0, cpu_offload: 0,
  };
  const labels = { arch: q.card.arch, accelerator: q.card.name, kind: a.n_expert > 0 ? "mixture" : "dense", adapters: "False",
    framework: near.frameworks[q.state.framework], sharding: a.zero_stage >= 2 ? "True" : "False" };
  const codes = Object.entries(near.categories).map(([name, known]) => [near.weights[name], known.indexOf(labels[name])]);
  const numbers = near.numbers.map((name) => [near.weights[name], ours[name]]);
  const apart = (row) => {
    let sum = 0;
    numbers.forEach(([weight, value], i) => { sum += weight * Math.abs(value - row[at.numbers][i]); });
    codes.forEach(([weight, code], i) => { sum += weight * (code !== row[at.categories][i]); });
    return sum;
  };
  const adapters = Object.keys(near.categories).indexOf("adapters"), all = near.categories.adapters.indexOf("False");
  const weights = near.rows.filter((row) => row[at.categories][adapters] === all); // those that train all weights
  const found = weights.map((row) => [apart(row), row]).sort((one, other) => one[0] - other[0]).slice(0, most);
  return found.map(([distance, row]) => ({
    distance, ...Object.fromEntries(near.columns.map((name, i) => [name, row[i]])), link: near.starts[row[at.start]] + row[at.rest],
  }));
}

// ---- words
function layoutWords(c, dp) {
  const degrees = ["tp", "pp", "cp", "ep"].filter((name) => c[name] > 1).map((name) => name + c[name]);
  if (c.vpp > 1) degrees.push("v" + c.vpp);
  const again = { 0: "", 0.5: " recompute selective", 1: " recompute full" }[c.recompute];
  return `ZeRO-${c.zero_stage} ${["dp" + dp, ...degrees].join(" ")} mb${c.micro_batch}${again}`;
}

const quoted = (text) => (/^[\w.+-]+$/.test(text) ? text : `"${text.replace(/(["$`\\])/g, "\\$1")}"`);

function moneyOf(q) { // options of price, power and failures where they are not those of the command
  const card = D.cards.find((one) => one.name === q.state.card), { failures, restart, storage } = K.cluster;
  const price = q.price === null || q.price === (card?.usd ?? null) ? [] : [`--price ${q.price}`];
  const mtbf = q.mtbf === failures.node_mtbf_h ? [] : [`--mtbf-h ${q.mtbf}`];
  const again = q.restart === restart.notice_s + restart.start_s + restart.warmup_s ? [] : [`--restart-s ${q.restart}`];
  const power = q.power_w === null || q.power_w === (card?.tdp_w ?? null) ? [] : [`--power-w ${q.power_w}`];
  const kwh = q.power_price === null ? [] : [`--power-price ${q.power_price}`];
  const written = q.write === storage.write_gb_s, alike = written ? storage.read_gb_s : q.write; // what it reads unless told otherwise
  const disk = [...(written ? [] : [`--storage-gb-s ${q.write}`]), ...(q.read === alike ? [] : [`--storage-read-gb-s ${q.read}`])];
  return [...price, ...power, ...kwh, ...mtbf, ...again, ...disk, ...(q.state.asynchronous === "yes" ? ["--background"] : [])];
}

function tableCommandOf(q, surely) { // what prints the table of the page; null for own integers
  const s = q.state, plain = (x) => x.toLocaleString("en-US", { useGrouping: false, maximumFractionDigits: 6 });
  if (s.model === "own") return null;
  return ["llmbench plan", `--model ${quoted(s.model)}`, `--hardware ${quoted(s.card)}`, `--gpus ${q.gpus}`,
    `--global-tokens ${plain(q.tokens)}`, `--seq-len ${q.seq}`, `--tokens ${plain(q.training)}`, `--framework ${s.framework}`,
    `--precision ${s.precision}`, ...(q.network === null ? [] : [`--network-gb-s ${q.network}`]),
    ...moneyOf(q), ...(surely ? ["--surely"] : []), `--top ${SHOWN}`].join(" ");
}

function commandOf(q, c) { // what prints one layout
  const whole = tableCommandOf(q, false);
  if (whole === null) return null;
  const degrees = ["tp", "pp", "vpp", "cp", "ep", "zero_stage"].map((name) => `${name}=${c[name]}`).join(",");
  const again = Object.keys(RECOMPUTE).find((name) => RECOMPUTE[name] === c.recompute);
  return [whole.replace(/ --top \d+$/, ""), `--layout ${degrees}`, `--micro ${c.micro_batch}`, `--recompute ${again}`].join(" ");
}
