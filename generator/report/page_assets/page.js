"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const places = new Map(data.rows.map((row, at) => [row[0], at]));
const column = new Map(data.columns.map((one, at) => [one.name, at]));
const STEP = 200;
let shown = STEP, sorted = { name: "symbol", down: false };

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function words(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(4));
  if (Array.isArray(value)) return value.map(words).join(", ");
  return typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name} ${words(one)}`).join(", ") : String(value);
}

const breakable = (symbol) => symbol.split(/(?<=_)/).flatMap((part) => [part, make("wbr")]);
const short = (symbol) => /_([0-9a-f]{8})$/.exec(symbol)?.[1] || symbol;
const link = (symbol) => make("a", { href: "#kernel=" + symbol, title: symbol }, short(symbol));

// ---- The address: #kernel=SYMBOL, or the filters as #q=...&arch=... ----

const address = () => new URLSearchParams(location.hash.slice(1));
const controls = () => [byId("q"), ...document.querySelectorAll("#filters select")];

function toAddress() {
  const filters = new URLSearchParams();
  for (const control of controls()) if (control.value) filters.set(control.name, control.value);
  history.replaceState(null, "", filters.toString() ? "#" + filters : location.pathname + location.search);
}

// ---- The table ----

const COMPARE = {
  "<": (a, b) => a < b, "<=": (a, b) => a <= b, "=": (a, b) => a === b,
  "!=": (a, b) => a !== b, ">=": (a, b) => a >= b, ">": (a, b) => a > b,
};

function condition(word) {
  const match = /^([a-z_]+)(<=|>=|!=|<|>|=)(.+)$/.exec(word);
  if (match && column.has(match[1])) {
    const at = column.get(match[1]), number = Number(match[3].replaceAll(",", "")), test = COMPARE[match[2]];
    return (row) => row[at] !== null && test(row[at], typeof row[at] === "number" ? number : match[3]);
  }
  return (row) => row[0].includes(word.toLowerCase());
}

function chosen() {
  const tests = byId("q").value.split(/\s+/).filter(Boolean).map(condition);
  for (const control of document.querySelectorAll("#filters select")) {
    const at = column.get(control.name);
    if (control.value) tests.push((row) => String(row[at]) === control.value);
  }
  const rows = data.rows.filter((row) => tests.every((test) => test(row)));
  const at = column.get(sorted.name), sign = sorted.down ? -1 : 1;
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return rows.sort((a, b) => (a[at] === null) - (b[at] === null) || sign * order(a[at], b[at]) || order(a[0], b[0]));
}

// Columns without values, and those with one value for all kernels, are not shown. A line names the latter.
const isSame = (at) => at > 0 && data.rows.length > 1 && data.rows.every((row) => row[at] === data.rows[0][at]);
const visible = data.columns.map((_, at) => at).filter((at) => at === 0 || !(isSame(at) || data.rows.every((row) => row[at] === null)));

function same() {
  const told = data.columns.filter((_, at) => isSame(at) && data.rows[0][at] !== null).map((one) => `${one.head} ${words(data.rows[0][column.get(one.name)])}`);
  byId("same").textContent = "The same for all kernels: " + told.join(", ");
  byId("same").hidden = !told.length;
}

function fill() {
  const rows = chosen(), body = byId("rows");
  body.replaceChildren(...rows.slice(0, shown).map((row) => make("tr", {}, ...visible.map((at) => [row[at], at]).map(([value, at]) =>
    at === 0 ? make("th", { scope: "row" }, link(value))
      : make("td", typeof value === "number" ? { class: "number" } : {}, words(value))))));
  byId("count").textContent = `${rows.length.toLocaleString("en")} of ${data.rows.length.toLocaleString("en")} kernels` +
    (rows.length > shown ? `, showing the first ${shown}` : "");
  byId("more").hidden = rows.length <= shown;
  for (const head of document.querySelectorAll("#heads th")) {
    const own = head.dataset.name === sorted.name;
    head.setAttribute("aria-sort", own ? (sorted.down ? "descending" : "ascending") : "none");
  }
}

function changed() {
  shown = STEP;
  toAddress();
  fill();
}

function build() {
  same();
  byId("heads").append(...visible.map((at) => data.columns[at]).map((one) => {
    const button = make("button", { type: "button", title: one.says }, one.head);
    button.addEventListener("click", () => {
      const numbers = typeof data.rows.find((row) => row[column.get(one.name)] !== null)?.[column.get(one.name)] === "number";
      sorted = { name: one.name, down: sorted.name === one.name ? !sorted.down : numbers };
      fill();
    });
    return make("th", { scope: "col", "data-name": one.name }, button);
  }));
  for (const one of data.columns.filter((one) => one.choose)) {
    const values = [...new Set(data.rows.map((row) => words(row[column.get(one.name)])))].filter(Boolean);
    values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    if (values.length < 2) continue;
    const select = make("select", { name: one.name },
      make("option", { value: "" }, "any"), ...values.map((value) => make("option", { value }, value)));
    select.addEventListener("change", changed);
    byId("filters").append(make("label", { title: one.says }, one.head, select));
  }
  byId("q").addEventListener("input", changed);
  byId("more").addEventListener("click", () => { shown += 5 * STEP; fill(); });
}

// ---- A kernel's page ----

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function facts(title, values) {
  const rows = Object.entries(values).map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, words(value))));
  return make("section", { class: "facts" }, make("h3", {}, title), make("table", {}, make("tbody", {}, ...rows)));
}

function histogram(counts) {
  const entries = Object.entries(counts).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const most = entries.length ? entries[0][1] : 1;
  const rows = entries.map(([name, count]) => make("tr", {}, make("th", { scope: "row" }, name),
    make("td", { class: "number" }, words(count)),
    make("td", { class: "bar" }, make("span", { style: `width:${Math.max(0.5, 100 * count / most)}%` }))));
  const total = entries.reduce((sum, [, count]) => sum + count, 0);
  return make("section", { class: "sass" }, make("h3", {}, "Machine code"),
    make("p", {}, `${words(total)} instructions of ${entries.length} kinds`), make("table", {}, make("tbody", {}, ...rows)));
}

function times(measured) {
  const section = make("section", { class: "times" }, make("h3", {}, "Measured"));
  if (!measured.length) return section.append(make("p", {}, "This kernel has no measurements.")), section;
  const names = Object.keys(measured[0]);
  const order = ["problem", "us", "tflops", "of_cublaslt", "fastest", "types", "state", "device", "date"].filter((name) => names.includes(name));
  const rows = measured.map((one) => make("tr", {}, ...order.map((name) =>
    make("td", typeof one[name] === "number" ? { class: "number" } : {}, words(one[name])))));
  section.append(make("div", { class: "scroll", tabindex: 0 }, make("table", {},
    make("thead", {}, make("tr", {}, ...order.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows))));
  return section;
}

function proof(values) {
  const proved = values.shapes && values.shapes.length;
  const summary = proved
    ? `Its PTX was run on the CPU with ${values.shapes.length} shapes and ${values.timings.length} schedules: ` +
      `${values.races} races; largest error ${words(values.max_bound_ratio)} of the bound.`
    : "No proof. To prove it on the CPU, run: hgemm verify --emulate";
  const section = facts("Proof", values);
  section.firstChild.after(make("p", {}, summary));
  return section;
}

async function pictures(list) {
  const section = make("section", { class: "pictures" }, make("h3", {}, "Operands in shared memory"));
  section.append(make("p", {}, list.length
    ? "A square is a 16-byte vector of shared memory. Its number and colour show which of the 8 groups of 4 banks holds it. " +
      "One access reads the vectors of one frame. Vectors of a frame in the same group conflict."
    : "There are no pictures for this kind of kernel."));
  for (const [says, place] of list) {
    const image = make("img", { alt: says, src: "data:image/svg+xml," + encodeURIComponent(await unpacked(data.pictures[place])) });
    section.append(make("figure", {}, make("figcaption", {}, says), make("div", { class: "scroll", tabindex: 0 }, image)));
  }
  return section;
}

async function kernel(symbol) {
  const page = byId("kernel"), at = places.get(symbol);
  page.replaceChildren(make("p", {}, make("a", { href: "#" }, "back to the library")), make("h2", {}, ...breakable(symbol)));
  if (at === undefined) return page.append(make("p", {}, "This kernel is not in the report."));
  const found = (await unpacked(data.packs[Math.floor(at / data.pack)]))[at % data.pack], record = found.record;
  const { launch, ...rest } = record;
  const tables = make("div", { class: "columns" },
    facts("Spec", record.spec), facts("Resources", record.resources), facts("Launch", launch),
    facts("Launch traits", record.traits), found.model ? facts("Limits by the cost model", found.model) : null,
    proof(record.proof), facts("Build", { alias: rest.alias, key: rest.key, ...rest.toolchain, ...Object.fromEntries(
      Object.entries(rest.seconds).map(([name, value]) => [name + " seconds", value])) }),
    facts("Files", Object.fromEntries(Object.entries(rest.files).map(([name, file]) =>
      [name, `${words(file.bytes)} B, sha256 ${file.sha256}`]))));
  const source = make("section", {}, make("h3", {}, "Source"),
    make("pre", { class: "scroll", tabindex: 0 }, make("code", {}, found.source)));
  const drawn = await pictures(found.pictures);
  if (address().get("kernel") !== symbol) return;  // the reader has opened another kernel
  page.append(tables, times(found.measured), histogram(record.sass), drawn, source);
  page.dataset.ready = symbol;
}

// ---- Navigation ----

function go() {
  const asked = address(), symbol = asked.get("kernel");
  byId("kernel").hidden = symbol === null;
  byId("overview").hidden = symbol !== null;
  delete byId("kernel").dataset.ready;
  if (symbol !== null) {
    document.title = symbol;
    kernel(symbol).then(() => scrollTo(0, 0));
  } else {
    document.title = byId("title").textContent;
    if (location.hash.includes("=")) for (const control of controls()) control.value = asked.get(control.name) || "";
    fill();
  }
}

build();
addEventListener("hashchange", go);
go();
