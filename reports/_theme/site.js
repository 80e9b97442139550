// Behaviour of the built-in renderer's pages: theme, search, tabs, sortable tables, copy, contents.
// A classic script without fetch(), so that the site works from a folder and from a server alike.
(function () {
  "use strict";
  const root = document.currentScript.dataset.root || "";
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  // ---- light and dark
  function themeSwitch() {
    const button = document.getElementById("theme-switch");
    const page = document.documentElement;
    const show = (theme) => {
      page.dataset.theme = theme;
      button.setAttribute("aria-pressed", String(theme === "dark"));
    };
    show(page.dataset.theme || "light");
    button.addEventListener("click", () => {
      show(page.dataset.theme === "dark" ? "light" : "dark");
      try { localStorage.setItem("llmbench-theme", page.dataset.theme); } catch (error) { /* storage is off */ }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
      let chosen = null;
      try { chosen = localStorage.getItem("llmbench-theme"); } catch (error) { /* storage is off */ }
      if (!chosen) show(event.matches ? "dark" : "light");
    });
  }

  // ---- search: the index is a script, loaded when the box is first used
  function loadIndex(then) {
    if (window.LLMBENCH_SEARCH) return then();
    if (loadIndex.waiting) return loadIndex.waiting.push(then);
    loadIndex.waiting = [then];
    const script = element("script", { src: root + "assets/search.js" });
    script.onload = () => loadIndex.waiting.forEach((waiting) => waiting());
    document.head.append(script);
  }

  function score(entry, words) {
    let sum = 0;
    const heading = entry.heading.toLowerCase(), page = entry.page.toLowerCase(), text = entry.text.toLowerCase();
    for (const word of words) {
      // a whole word of a heading is what it is about: tp is no part of TPrimat
      const named = heading.split(/[^\p{L}\p{N}]+/u).includes(word) ? 12 : heading.includes(word) ? 8 : 0;
      const found = named + (page.includes(word) ? 4 : 0)
        + Math.min(text.split(word).length - 1, 4);
      if (!found) return 0;
      sum += found;
    }
    return entry.url.startsWith("runs/") ? sum / 8 : sum; // there are hundreds, alike
  }

  function marked(text, words) {
    const pattern = new RegExp("(" + words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|") + ")", "gi");
    return text.split(pattern).map((part, index) => index % 2 ? element("mark", { textContent: part }) : part);
  }

  function excerpt(text, words) {
    const near = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
    const at = near ? text.indexOf(" ", near) + 1 : 0;
    return (at ? "… " : "") + text.slice(at, at + 180) + (at + 180 < text.length ? " …" : "");
  }

  function resultLink(entry, words, index) {
    const link = element("a", { className: "search-result", href: root + entry.url, id: "search-result-" + index });
    link.setAttribute("role", "option");
    const title = element("strong", {}, ...marked(entry.heading || entry.page, words));
    if (entry.heading) title.append(element("span", { className: "search-page", textContent: " · " + entry.page }));
    link.append(title, element("span", { className: "search-text" }, ...marked(excerpt(entry.text, words), words)));
    return link;
  }

  function search() {
    const input = document.getElementById("search-input"), box = document.getElementById("search-results");
    if (!input) return;
    let active = -1;
    const close = () => { box.hidden = true; input.setAttribute("aria-expanded", "false"); };
    const activate = (index) => {
      const links = all("a", box);
      active = links.length ? (index + links.length) % links.length : -1;
      links.forEach((link, i) => link.classList.toggle("is-active", i === active));
      if (active >= 0) {
        links[active].scrollIntoView({ block: "nearest" });
        input.setAttribute("aria-activedescendant", links[active].id);
      }
    };
    const update = () => loadIndex(() => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) return close();
      const found = window.LLMBENCH_SEARCH.map((entry) => [score(entry, words), entry])
        .filter(([points]) => points > 0).sort((a, b) => b[0] - a[0]).slice(0, 12);
      box.replaceChildren(...(found.length ? found.map(([, entry], index) => resultLink(entry, words, index))
        : [element("p", { className: "search-empty", textContent: "Nothing found for “" + input.value + "”." })]));
      box.hidden = false;
      input.setAttribute("aria-expanded", "true");
      activate(0);
    });
    input.addEventListener("focus", () => loadIndex(() => {}));
    input.addEventListener("input", update);
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") { event.preventDefault(); activate(active + 1); }
      else if (event.key === "ArrowUp") { event.preventDefault(); activate(active - 1); }
      else if (event.key === "Enter" && active >= 0 && !box.hidden) all("a", box)[active].click();
      else if (event.key === "Escape") { input.value = ""; close(); input.blur(); }
    });
    box.addEventListener("click", close);
    document.addEventListener("click", (event) => { if (!event.target.closest(".search")) close(); });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input, textarea, select, [contenteditable]");
      if (event.key === "/" && !typing) { event.preventDefault(); input.focus(); }
    });
  }

  // ---- tabs; sets with the same group follow each other
  function openTab(tabset, button) {
    all(":scope > .tab-list button", tabset).forEach((other) => {
      const chosen = other === button;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).classList.toggle("is-open", chosen);
    });
  }

  function tabs() {
    for (const tabset of all(".tabset")) {
      const buttons = all(":scope > .tab-list button", tabset);
      buttons.forEach((button, index) => {
        button.addEventListener("click", () => {
          openTab(tabset, button);
          if (!tabset.dataset.group) return;
          for (const twin of all('.tabset[data-group="' + tabset.dataset.group + '"]')) {
            const same = all(":scope > .tab-list button", twin).find((b) => b.textContent === button.textContent);
            if (same && twin !== tabset) openTab(twin, same);
          }
        });
        button.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!step) return;
          const next = buttons[(index + step + buttons.length) % buttons.length];
          next.focus();
          next.click();
        });
      });
    }
  }

  // A link to something in a closed tab or a folded part opens it.
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) {
      if (part.tagName === "DETAILS") part.open = true;
      if (part.classList.contains("tab-panel")) {
        openTab(part.parentElement, document.getElementById(part.getAttribute("aria-labelledby")));
      }
    }
    target.scrollIntoView();
  }

  // ---- tables
  function sortValue(cell) {
    const text = (cell.dataset.sort ?? cell.textContent).trim();
    if (text === "" || /^([-–—]|n\/a|null)$/i.test(text)) return null;
    const number = text.replace(/[−]/g, "-").replace(/(\d),(?=\d{3})/g, "$1").match(/^[^\d\w+-]*([+-]?\d+(\.\d+)?(e[+-]?\d+)?)(?![\d-])/i);
    return number ? Number(number[1]) : text.toLowerCase();
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sortBy(table, header, column) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    all("thead th", table).forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    for (const body of table.tBodies) {
      const rows = Array.from(body.rows).map((row) => [sortValue(row.cells[column]), row]);
      // An unknown value is last in both directions: it is neither small nor large.
      rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : (descending ? -1 : 1) * compare(a, b));
      body.append(...rows.map(([, row]) => row));
    }
  }

  function alignNumbers(table) {
    const headers = all("thead th", table);
    headers.forEach((header, column) => {
      const cells = Array.from(table.tBodies).flatMap((body) => Array.from(body.rows)).map((row) => row.cells[column]);
      if (cells.some((cell) => cell && cell.textContent.trim().length > 40)) cells.forEach((cell) => cell && cell.classList.add("wordy"));
      const values = cells.filter(Boolean).map(sortValue).filter((value) => value !== null);
      if (!values.length || !values.every((value) => typeof value === "number") || header.style.textAlign) return;
      [header, ...cells].forEach((cell) => cell && cell.classList.add("num"));
    });
  }

  function tables() {
    for (const table of all(".content table")) {
      const simple = table.tHead && table.tHead.rows.length === 1 && table.tBodies.length
        && !table.querySelector("[colspan]:not([colspan='1']), [rowspan]:not([rowspan='1'])");
      if (!simple) continue;
      if (!table.closest(".table-scroll")) {
        const box = element("div", { className: "table-scroll", tabIndex: 0 });
        table.replaceWith(box);
        box.append(table);
      }
      alignNumbers(table);
      if (table.tBodies[0].rows.length < 3 || table.classList.contains("no-sort")) continue;
      Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
        // A link cannot stand in a button: a term of the glossary stays before it.
        const term = header.querySelector("a.term");
        const button = element("button", { type: "button", className: "sort-button" }, ...(term ? [] : header.childNodes));
        if (term) button.setAttribute("aria-label", "Sort by " + term.textContent);
        if (term && header.matches(".num, [style*='right']")) header.prepend(button);
        else header.append(button);
        header.setAttribute("aria-sort", "none");
        button.addEventListener("click", () => sortBy(table, header, column));
      });
    }
  }

  // ---- costs at the price that a reader types
  function ownPrices() {
    all(".own-price").forEach(ownPrice);
  }

  function ownPrice(box, index) {
    const entered = Number(box.dataset.price), amounts = all("[data-usd]", box);
    if (!(entered > 0) || !amounts.length) return;
    const currency = box.dataset.currency, offers = all(".offer", box);
    const dearest = Math.max(entered, ...offers.map((offer) => Number(offer.dataset.price)));
    const cost = ({ dataset }, end, hourly) => Number(dataset[end] ?? dataset.usd) * hourly / entered;
    const significant = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
    const bars = amounts.map((amount) => {
      const bar = element("span", { className: "cost-bar" });
      bar.append(element("span", { className: "cost-value" }), element("span", { className: "cost-span" }));
      amount.before(bar);
      return bar;
    });
    const show = (hourly) => {
      // the axis ends at the highest listed price, so that a lower one is seen as a shorter bar
      const end = Math.max(...amounts.map((amount) => cost(amount, "high", Math.max(dearest, hourly))));
      amounts.forEach((amount, i) => {
        const [low, value, high] = ["low", "usd", "high"].map((name) => cost(amount, name, hourly));
        const share = (part) => 100 * part / end + "%";
        bars[i].firstChild.style.width = share(value);
        Object.assign(bars[i].lastChild.style, { left: share(low), width: share(high - low) });
        const interval = amount.dataset.low ? " (" + significant(low) + " to " + significant(high) + ")" : "";
        amount.textContent = significant(value) + interval + " " + currency;
      });
    };
    const input = element("input", { type: "number", min: "0", step: "any", value: Number(entered.toPrecision(6)), id: "own-price-" + (index + 1) });
    const said = element("label", { htmlFor: input.id, textContent: "Your price, " + currency + " per hour: " });
    const choose = (hourly) => { input.value = hourly; show(hourly); };
    input.addEventListener("input", () => { if (Number(input.value) > 0) show(Number(input.value)); });
    for (const offer of offers) {
      const button = element("button", { type: "button", textContent: offer.textContent });
      button.addEventListener("click", () => choose(Number(offer.dataset.price)));
      offer.replaceChildren(button);
    }
    const lists = all(":scope > ul", box), runs = lists[lists.length - 1];
    runs.previousElementSibling.replaceChildren("Cost of 10⁶ tokens. ", said, input);
    show(entered);
  }

  // ---- costs by card: each line has a price that a reader may type
  function cardPrices() {
    for (const row of all(".card-prices tr")) {
      const hour = row.querySelector(".hour");
      if (hour) cardPrice(row, hour);
    }
  }

  function cardPrice(row, hour) {
    const input = element("input", { type: "number", min: "0", step: "any", value: hour.dataset.price });
    input.setAttribute("aria-label", "Price of " + row.cells[0].textContent.trim() + ", USD per hour");
    const exactly = { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
    const show = () => {
      const hourly = Number(input.value);
      hour.parentElement.dataset.sort = hourly > 0 ? hourly : "";
      for (const cost of all(".per-million", row)) {
        const at = (rate) => (hourly / 3600 / Number(rate) * 1e6).toLocaleString("en-US", exactly);
        const { rate, low, high } = cost.dataset;
        cost.textContent = hourly > 0 ? at(rate) + (low ? " (" + at(high) + "\u00a0to\u00a0" + at(low) + ")" : "") : "–";
      }
    };
    for (const typed of ["input", "change"]) input.addEventListener(typed, show);
    hour.replaceChildren(input);
    show();
  }

  // ---- small helps
  function copyButtons() {
    for (const block of all("div.sourceCode")) {
      const button = element("button", { type: "button", className: "copy-button", textContent: "Copy" });
      button.addEventListener("click", async () => {
        const text = block.querySelector("code").innerText;
        try {
          await navigator.clipboard.writeText(text);
          button.textContent = "Copied";
        } catch (error) {
          const range = document.createRange();
          range.selectNodeContents(block.querySelector("code"));
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          button.textContent = "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      block.append(button);
    }
  }

  function headingAnchors() {
    for (const heading of all(".content > :is(h2, h3, h4)[id]")) {
      const anchor = element("a", { className: "heading-anchor", href: "#" + heading.id, textContent: "#" });
      anchor.setAttribute("aria-label", "Link to this section");
      heading.append(anchor);
    }
  }

  function contentsList() {
    const links = new Map(all(".toc a").map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
    const headings = all(".content :is(h2, h3, h4)[id]").filter((heading) => links.has(heading.id));
    if (!headings.length) return;
    const update = () => {
      const line = document.querySelector(".site-header").offsetHeight + 40;
      let current = headings[0];
      for (const heading of headings) if (heading.getBoundingClientRect().top <= line) current = heading;
      links.forEach((link, id) => link.classList.toggle("is-current", id === current.id));
    };
    document.addEventListener("scroll", () => requestAnimationFrame(update), { passive: true });
    update();
  }

  // A menu closes like one: by Escape, which leads back to its name, and by a click elsewhere.
  function menus() {
    const open = () => all(".site-header details[open]");
    document.addEventListener("click", (event) => {
      open().filter((menu) => !menu.contains(event.target)).forEach((menu) => { menu.open = false; });
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      open().forEach((menu) => {
        if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
        menu.open = false;
      });
    });
  }

  // Paper cannot be clicked: what is folded is printed open, and folded again.
  function printOpen() {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = all("details:not([open])").filter((fold) => !fold.closest(".vega-chart"));
      opened.forEach((fold) => { fold.open = true; });
    });
    addEventListener("afterprint", () => opened.forEach((fold) => { fold.open = false; }));
  }

  // What scrolls must be reached by the keyboard, and what does not scroll is no stop on its way.
  function scrolledByKeys() {
    const update = (box) => {
      if (box.scrollWidth > box.clientWidth + 1) box.setAttribute("tabindex", "0");
      else box.removeAttribute("tabindex");
    };
    // also when a fold or a tab opens: what is not shown has no size
    const resized = new ResizeObserver((entries) => entries.forEach((entry) => update(entry.target)));
    all("pre, math[display='block']").forEach((box) => { update(box); resized.observe(box); });
  }

  [themeSwitch, search, tabs, tables, scrolledByKeys, ownPrices, cardPrices, copyButtons, headingAnchors, contentsList, menus, printOpen, reveal]
    .forEach((start) => start());
  addEventListener("hashchange", reveal);
})();
