// The page SQL: a query that can be edited, run in the browser where the site has an engine, saved as a notebook, or typed
// in a shell. All text is written as text. The address holds the query.
(function () {
"use strict";
const root = document.getElementById("ask");
const D = JSON.parse(document.getElementById("ask-data").textContent);
const FIRST = 500;
const served = location.protocol === "http:" || location.protocol === "https:";
let run = null, found = null;

function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const box = el("textarea", { id: "ask-query", spellcheck: "false", oninput: () => { toAddress(); typed(); } });
const said = el("p", { class: "ask-said", role: "status" });
const rows = el("div", { class: "ask-rows", tabindex: "0", role: "region", "aria-label": "Rows" });
const command = el("code");
const runButton = el("button", { type: "button", onclick: ask }, "Run (Ctrl+Enter)");
const csvButton = el("button", { type: "button", onclick: saveCsv, disabled: "" }, "Save rows (CSV)");

function say(text, isError = false) {
  said.textContent = text;
  said.classList.toggle("is-error", isError);
}

// ---- what to type elsewhere
const quoted = (text) => "'" + text.replace(/'/g, "'\\''") + "'";
function typed() {
  command.textContent = `llmbench query ${quoted(box.value.trim())} --results DIR`;
}

function save(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function notebook() {
  const cell = (kind, text) => ({ cell_type: kind, id: kind, metadata: {}, source: text.split(/(?<=\n)/),
    ...(kind === "code" ? { execution_count: null, outputs: [] } : {}) });
  const text = /"""|\\/.test(box.value) ? JSON.stringify(box.value) : `"""\n${box.value.trim()}\n"""`;
  const python = `import llmbench\n\nrows = llmbench.query(${text})\nrows[:20]`;
  return { cells: [cell("markdown", "# A query of the site\n\nType `results=...` for other runs than those of settings.ini."), cell("code", python)],
    metadata: { kernelspec: { display_name: "Python 3", language: "python", name: "python3" } }, nbformat: 4, nbformat_minor: 5 };
}
const saveNotebook = () => save("query.ipynb", "application/x-ipynb+json", JSON.stringify(notebook(), null, 1));

// A cell that a spreadsheet would take for a formula gets an apostrophe.
function csvCell(value) {
  const text = value === null ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}
function saveCsv() {
  save("rows.csv", "text/csv", [found.columns, ...found.rows].map((row) => row.map(csvCell).join(",")).join("\n") + "\n");
}

// ---- rows
function shown(value) {
  if (value === null) return "–";
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);
}

function draw() {
  const head = el("tr", {}, ...found.columns.map((name) => el("th", { scope: "col" }, name)));
  const body = found.rows.slice(0, FIRST).map((row) => el("tr", {}, ...row.map((value) => el("td", {}, shown(value)))));
  rows.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
  const some = found.rows.length > FIRST ? `, the first ${FIRST} are shown` : "";
  say(`${found.rows.length} rows${some}.`);
  csvButton.disabled = false;
}

async function ask() {
  if (runButton.disabled) return;
  runButton.disabled = true;
  try {
    if (!run) {
      say("Loading DuckDB from this site (34 MB) …");
      const base = new URL(D.engine, document.baseURI).href;
      run = await (await import(base + "duckdb.js")).open(base);
    }
    found = await run(box.value);
    draw();
  } catch (error) {
    rows.replaceChildren();
    csvButton.disabled = true;
    say(error.message || String(error), true);
  }
  runButton.disabled = false;
}

// ---- address
function toAddress() {
  try {
    history.replaceState(null, "", `${location.pathname}#q=${encodeURIComponent(box.value)}`);
  } catch (error) { // a browser that allows only some changes per second: the next one is kept
    return;
  }
}

async function fromAddress() {
  const kept = new URLSearchParams(location.hash.slice(1)).get("q");
  const named = new URLSearchParams(location.search).get("of") || "";
  box.value = kept === null ? D.first : kept.slice(0, 20000);
  if (kept === null && /^sql(\/[\w.-]+)+\.sql$/.test(named) && !named.includes("..")) {
    if (!served) return say(`${named} is read where the site is served: python -m http.server in its folder.`);
    const answer = await fetch(named);
    if (answer.ok) box.value = await answer.text();
    else say(`${named}: ${answer.status}`, true);
  }
}

function start() {
  const tables = Object.entries(D.tables).map(([name, columns]) =>
    el("li", {}, el("code", {}, name), ": ", columns.join(", ")));
  const buttons = [runButton, csvButton, el("button", { type: "button", onclick: saveNotebook }, "Save as a notebook")];
  root.replaceChildren(el("label", { for: "ask-query" }, "Query"), box, el("div", { class: "ask-buttons" }, ...buttons), said, rows,
    el("p", {}, "In a shell: "), el("pre", { tabindex: "0" }, command),
    el("details", {}, el("summary", {}, "Tables and their columns"), el("ul", {}, ...tables)));
  box.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask(); });
  if (!D.engine || !served) {
    runButton.disabled = true;
    say(D.engine ? "Queries run where the site is served: python -m http.server in its folder."
      : "This site was built without an engine for queries: make duckdb-wasm, then llmbench report --duckdb .venv/duckdb-wasm.");
  }
  fromAddress().catch((error) => say(error.message, true)).finally(typed);
}
start();
})();
