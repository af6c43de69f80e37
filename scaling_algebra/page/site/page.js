// The form, the answer and the link between them. What there is to choose and what is precomputed stands in page.json.
import { Cancelled, Engine, key } from "./engine.js";
import { RayMap, point } from "./map.js";

const $ = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
};
const folded = (title, ...inside) => make("details", {}, make("summary", { textContent: title }), ...inside);
const page = await (await fetch(new URL("page.json", import.meta.url))).json();
const { choices } = page;
const SIZES = ["base", "target", "lr", "eps", "std", "decay"];
const FIELDS = ["ray", ...SIZES, "optimizer", "parameterization", "readout_init", "epsilon", "architecture", "network"];
const OWN = "own";
const MODES = [...Object.keys(choices.regimes), "ray", "sizes"];
let mode = page.first.regime;
let shown = null; // the question whose answer is on the page
let turns = 0;
let strange = {}; // words of the link that the form has no field for

const engine = new Engine(page, (state, text) => {
  document.body.dataset.engine = state;
  $("engine").querySelector("span").textContent = text;
});

// the form ------------------------------------------------------------------------------------------------------------

function options(id, entries) {
  $(id).replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
}

$("modes").replaceChildren(
  ...MODES.map((name) => {
    const radio = make("input", { type: "radio", name: "mode", value: name });
    if (choices.regimes[name]) radio.setAttribute("aria-label", `regime ${name}`);
    return make("label", {}, radio, { ray: "Ray", sizes: "Sizes" }[name] ?? name);
  }),
);
options("optimizer", Object.entries(choices.optimizers));
options("parameterization", Object.entries(choices.parameterizations));
options("readout_init", [["", "as defined"], ...choices.readouts.map((x) => [x, x])]);
options("epsilon", choices.epsilons.map((x, k) => [k ? x : "", x]));
$("quantities").replaceChildren(...choices.quantities.map((x) => new Option(x)));
$("about").textContent = `scalecalc ${page.version}, unmodified, under Pyodide ${page.pyodide}. Nothing is sent anywhere: all files come with this page.`;
$("network").value = choices.example;

/** Puts a value into a field; one that a list lacks is added to it, so that the answer says what is wrong with it. */
function choose(id, value) {
  const field = $(id);
  field.value = value;
  if (field.tagName === "SELECT" && field.selectedIndex < 0) field.add(new Option(value, value, true, true));
}

function networks() {
  const usual = mode === "sizes" ? "Transformer with depth (default)" : "MoE block of the MSSP paper (default)";
  const kept = $("architecture").value;
  options("architecture", [["", usual], ...Object.entries(choices.architectures).map(([x, title]) => [x, `${x}: ${title}`]), [OWN, "your own"]]);
  choose("architecture", kept);
}

function arrange() {
  document.body.dataset.mode = mode;
  document.querySelector(`[name=mode][value="${mode}"]`).checked = true;
  networks();
  $("sizes").hidden = mode !== "sizes";
  $("growth").hidden = mode === "sizes";
  $("own").hidden = $("architecture").value !== OWN;
  $("map-figure").hidden = $("architecture").value !== "";
  $("ray").readOnly = Boolean(choices.regimes[mode]);
  if (choices.regimes[mode]) $("ray").value = choices.regimes[mode];
  const hints = { ray: "any rates: drag the point, or type them", sizes: "numbers for a large model from those of a small one" };
  const names = { N: "width", N_e: "expert width", M: "experts" };
  const grows = (ray) => Object.keys(names).filter((x) => !ray.split(",").includes(`${x}=0`)).map((x) => names[x]);
  $("hint").textContent = hints[mode] ?? `regime ${mode}: ${grows(choices.regimes[mode]).join(", ")} grow alike`;
  map.put(point($("ray").value));
  draw();
  number();
}

/** Fields that the growth leaves no place for. */
const unused = () => (mode === "sizes" ? ["ray"] : choices.regimes[mode] ? ["ray", ...SIZES] : SIZES);

function question() {
  const query = { ask: mode === "sizes" ? "recipe" : "derive" };
  if (choices.regimes[mode]) query.regime = mode;
  for (const name of FIELDS.filter((x) => x !== "network" && !unused().includes(x))) {
    if ($(name).value.trim()) query[name] = $(name).value.trim();
  }
  if (query.architecture === OWN) {
    delete query.architecture;
    query.network = $("network").value;
  }
  return { ...query, ...strange };
}

// the link ------------------------------------------------------------------------------------------------------------

function link() {
  const { ask, regime, ...rest } = question();
  const words = new URLSearchParams({ grow: strange.regime ?? mode, ...rest });
  if (rest.network) words.set("architecture", OWN);
  if ($("what").dataset.query) words.set("why", $("what").dataset.query);
  history.replaceState(null, "", `#${words}`);
}

function follow() {
  const words = new URLSearchParams(location.hash.slice(1));
  strange = {};
  if (![...words].length) return words;
  const told = words.has("ray") ? "ray" : words.has("base") || words.has("target") ? "sizes" : page.first.regime;
  const grow = words.get("grow") ?? words.get("regime") ?? told;
  if (MODES.includes(grow)) mode = grow;
  else strange.regime = grow;
  if (words.has("grow") && words.has("regime")) strange.regime ??= words.get("regime");
  const fields = FIELDS.filter((x) => !unused().includes(x));
  for (const name of words.keys()) {
    const values = words.getAll(name);
    if (values.length > 1 || !["grow", "regime", "why", ...fields].includes(name)) strange[name] = values.join(", ");
  }
  for (const name of fields) {
    if (name === "network" && !words.has(name)) continue;
    const usual = $(name).tagName === "SELECT" ? (page.first[name] ?? "") : "";
    choose(name, words.get(name) ?? usual);
  }
  return words;
}

// the map -------------------------------------------------------------------------------------------------------------

const map = new RayMap(
  $("map"),
  (ray, done) => {
    mode = "ray";
    $("ray").value = ray;
    $("answer").dataset.state = "busy";
    if (!done) return;
    $("status").textContent = ray;
    arrange();
    answer();
  },
  (regime) => {
    mode = regime;
    arrange();
    answer();
  },
);
const maps = {};
let wanted = "";

async function draw() {
  const mine = `${$("optimizer").value}-${$("parameterization").value}`;
  const drawn = choices.maps.includes(mine) && !$("epsilon").value && !$("readout_init").value;
  const name = drawn ? mine : choices.maps[0];
  const title = [mine.replace("-", " "), ...["readout_init", "epsilon"].map((x) => $(x).value && `${x} ${$(x).value}`)].filter(Boolean).join(", ");
  if (wanted !== title) {
    wanted = title;
    maps[name] ??= await (await fetch(new URL(`maps/${name}.json`, import.meta.url))).json();
    if (wanted !== title) return;
    map.show(maps[name], !drawn);
    const none = maps[name].cells.every((cell) => !cell.name);
    const cells = none ? "No cell has a formula; the green walls have, and the regimes lie on them." : "A cell has one formula. Dots are the regimes, triangles published families of models.";
    $("map-hint").textContent = drawn ? `N grows at rate 1. ${cells}` : `No map of ${title}; there are maps of ${choices.maps.join(", ").replaceAll("-", " ")}, as defined.`;
  }
  map.put(point($("ray").value));
}

// a network of one's own ------------------------------------------------------------------------------------------------

function number(wrong = 0) {
  const count = $("network").value.split("\n").length;
  $("lines").replaceChildren(
    ...Array.from({ length: count }, (_, k) => make("li", { textContent: k + 1, className: k + 1 === wrong ? "wrong" : "" })),
  );
  $("network").rows = Math.max(6, Math.min(24, count));
}

function complain(error, line) {
  $("network-error").textContent = error ? (line ? `Line ${line}. ${error}` : error) : "";
  $("network").setAttribute("aria-invalid", Boolean(error));
  number(line ?? 0);
}

let typing;
$("network").addEventListener("input", () => {
  number();
  clearTimeout(typing);
  typing = setTimeout(read, 500);
});

async function read() {
  if ($("own").hidden) return;
  const text = $("network").value;
  const reply = await engine.ask({ ask: "read", network: text }).catch((fault) => ({ error: fault.message }));
  if (text !== $("network").value) return;
  complain(reply.error, reply.line);
  if (reply.error) return;
  $("read").textContent = reply.equations;
  $("quantities").replaceChildren(...reply.quantities.map((x) => new Option(x)));
}

// the answer ------------------------------------------------------------------------------------------------------------

/** Asks, with a line that says so and a button that ends it; null where another question came first. */
async function wait(query, text) {
  const mine = ++turns;
  const began = performance.now();
  let step = text;
  const tell = () => {
    const seconds = Math.floor((performance.now() - began) / 1000);
    const loading = document.body.dataset.engine === "loading";
    $("busy").querySelector("span").textContent = `${loading ? "waiting for the engine to load" : step}${seconds ? `, ${seconds} s` : ""}`;
    $("busy").hidden = false;
  };
  const soon = setTimeout(tell, 150);
  const clock = setInterval(tell, 1000);
  try {
    const reply = await engine.ask(query, (state) => (step = state));
    return mine === turns ? reply : null;
  } catch (fault) {
    return fault instanceof Cancelled || mine !== turns ? null : { error: fault.message };
  } finally {
    clearTimeout(soon);
    clearInterval(clock);
    if (mine === turns) $("busy").hidden = true;
  }
}

$("busy").querySelector("button").addEventListener("click", () => {
  turns++;
  engine.cancel();
  $("busy").hidden = true;
  $("status").textContent = "cancelled";
  $("answer").dataset.state = "cancelled";
  $("more").dataset.state = "cancelled";
});

async function answer() {
  const query = question();
  delete $("what").dataset.query;
  link();
  $("answer").dataset.state = "busy";
  if (["prove", "settle"].includes(engine.flying?.question.ask)) engine.cancel(); // nobody waits for it any more
  const reply = await wait(query, query.ask === "recipe" ? "carrying the values over" : "deriving");
  if (!reply) return;
  shown = reply.error && !reply.missing ? null : query;
  $("more").hidden = true;
  $("error").hidden = !reply.error;
  $("error").textContent = reply.error ?? "";
  $("tools").hidden = Boolean(reply.error) && !reply.missing;
  $("prove").hidden = query.ask !== "derive" || !choices.derived.includes(query.parameterization);
  $("explain").hidden = query.ask !== "derive" || Boolean(reply.error);
  document.querySelector(".copies").hidden = Boolean(reply.error);
  if (query.network) complain(reply.error, reply.line);
  $("document").replaceChildren();
  $("place").hidden = !reply.place;
  $("place").textContent = reply.place ? `On the map: ${reply.place}` : "";
  if (!reply.error) {
    write($("document"), reply.html, $("answer-title"));
    if (query.ask === "derive") numbers(query);
    if (query.ask === "recipe") $("document").querySelector("table").classList.add("values");
  } else $("answer-title").textContent = "No answer";
  $("status").textContent = reply.error ?? `answer: ${$("answer-title").textContent}`;
  $("answer").dataset.key = key(query);
  $("answer").dataset.state = reply.error ? "error" : "shown";
  performance.mark("answered");
  if (reply.missing) settle(query);
}

/** What a search did not find is proved not to exist, if it is: as on the command line, below the map at once. */
async function settle(query) {
  const reply = await wait({ ...query, ask: "settle" }, "proving that there is none");
  if (reply?.error) $("error").textContent = $("status").textContent = reply.error;
}

/** A document into a place: its title into a heading that is there, what only some want to read folded. */
function write(place, html, title) {
  const parsed = new DOMParser().parseFromString(html, "text/html").body;
  const first = parsed.querySelector("h1");
  if (first && title) {
    title.innerHTML = first.innerHTML;
    first.remove();
  }
  for (const old of parsed.querySelectorAll("h1, h2, h3")) {
    const level = Number(old.tagName[1]) + (title?.tagName === "H2" && place.id === "document" ? 1 : 2);
    old.replaceWith(make(`h${level}`, { innerHTML: old.innerHTML }));
  }
  const titles = { why: () => "Why each number, in a line", structure: (list) => list?.querySelector("li")?.textContent };
  for (const heading of [...parsed.querySelectorAll("h3")].filter((h) => h.textContent in titles)) {
    const text = titles[heading.textContent](heading.nextElementSibling) ?? heading.textContent;
    const details = folded(text[0].toUpperCase() + text.slice(1));
    while (heading.nextElementSibling && !/^H\d$/.test(heading.nextElementSibling.tagName)) details.append(heading.nextElementSibling);
    heading.replaceWith(details);
  }
  place.replaceChildren(...parsed.childNodes);
}

/** Every number of the table becomes a button that asks for its reason. */
function numbers(query) {
  const table = $("document").querySelector("table");
  table.classList.add("powers");
  const heads = [...table.querySelectorAll("thead th")].map((th) => th.textContent);
  const meaning = {
    b: "init std n^-b on this ray", c: "learning rate n^-c on this ray", d: "epsilon n^-d on this ray",
    "init std": "how the initial std follows the sizes", lr: "how the learning rate follows the sizes", eps: "how epsilon follows the sizes",
  };
  for (const th of table.querySelectorAll("thead th")) th.title = meaning[th.textContent] ?? "";
  for (const row of table.rows) [...row.cells].forEach((x, k) => x.classList.toggle("exponent", ["b", "c", "d"].includes(heads[k])));
  if (heads.includes("b")) {
    const text = `On the ray init std ~ n^-b, learning rate ~ n^-c${heads.includes("d") ? ", epsilon ~ n^-d" : ""}. Press a power for its reason.`;
    table.parentElement.after(make("p", { className: "hint", id: "letters", textContent: text }));
  }
  for (const row of table.querySelectorAll("tbody tr")) {
    const role = row.querySelector("th").title;
    [...row.cells].forEach((cell, k) => {
      const what = { "init std": "init", lr: "lr", eps: "eps" }[heads[k]];
      if (!what || cell.textContent === "–") return;
      const button = make("button", { type: "button", className: "number", innerHTML: cell.innerHTML });
      button.setAttribute("aria-label", `${role} ${heads[k]}: ${cell.textContent}; why?`);
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => reason(query, `${role}.${what}`, button));
      cell.replaceChildren(button);
    });
  }
}

/** A second question about what is shown: its answer goes into a panel below. */
async function further(query, text) {
  if ($("answer").dataset.state === "busy") return null; // it is about what is replaced
  $("more").dataset.state = "busy";
  const reply = await wait(query, text);
  if (!reply) return null;
  const panel = $("more");
  panel.replaceChildren();
  panel.hidden = false;
  if (reply.error) panel.append(make("p", { className: "error", textContent: reply.error }));
  else {
    const [title, body] = [make("h3"), make("div")];
    write(body, reply.html, title);
    if (query.ask === "prove") proof(body, title);
    panel.append(title, body, copies(query));
  }
  panel.dataset.state = reply.error ? "error" : "shown";
  panel.dataset.key = key(query);
  $("status").textContent = panel.querySelector("h3, p").textContent;
  panel.scrollIntoView({ block: "nearest" });
  return reply;
}

/** A proof comes below the derivation, which is on the page already: it is folded here. */
function proof(body, title) {
  const begins = [...body.children].findIndex((x) => x.textContent.startsWith("proof: "));
  if (begins <= 0) return;
  const details = folded(title.textContent, ...[...body.children].slice(0, begins));
  const head = body.querySelector(":scope > :first-child");
  title.textContent = head.textContent;
  head.replaceWith(details);
}

async function reason(query, what, button) {
  for (const other of document.querySelectorAll("button.number")) other.setAttribute("aria-pressed", String(other === button));
  $("what").value = what;
  $("what").dataset.query = what;
  link();
  await further({ ...query, ask: "explain", what }, `explaining ${what}`);
}

$("explain").addEventListener("submit", (event) => {
  event.preventDefault();
  if (shown && $("what").value.trim()) reason(shown, $("what").value.trim());
});
$("prove").addEventListener("click", () => shown && further({ ...shown, ask: "prove" }, "proving"));

// copies ----------------------------------------------------------------------------------------------------------------

function copies(query) {
  const group = make("div", { className: "copies" }, make("span", { textContent: "Copy as", ariaHidden: "true" }));
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Copy as");
  const titles = { latex: "LaTeX", json: "JSON", csv: "CSV" };
  for (const form of choices.copies) {
    const title = titles[form] ?? form[0].toUpperCase() + form.slice(1);
    const button = make("button", { type: "button", textContent: title });
    button.dataset.form = form;
    button.addEventListener("click", async () => {
      const reply = await wait({ ...(query ?? shown), as: form }, `writing ${title}`);
      if (!reply) return;
      button.dataset.copied = reply.text ?? "";
      const done = reply.text !== undefined && (await navigator.clipboard.writeText(reply.text).then(() => true, () => false));
      button.textContent = done ? "Copied" : "Not copied";
      $("status").textContent = done ? `copied as ${title}` : `not copied: ${reply.error ?? "the browser refused"}`;
      setTimeout(() => (button.textContent = title), 1500);
    });
    group.append(button);
  }
  const save = (form, ending) => {
    const button = make("button", { type: "button", textContent: `Save .${ending}` });
    button.dataset.save = ending;
    button.addEventListener("click", async () => {
      const reply = await wait({ ...(query ?? shown), as: form }, `writing ${ending}`);
      if (!reply) return;
      $("status").textContent = reply.error ?? `saved as scalecalc.${ending}`;
      button.title = reply.error ?? "";
      if (reply.error) return;
      const address = URL.createObjectURL(new Blob([`${reply.text}\n`], { type: "text/plain" }));
      make("a", { href: address, download: `scalecalc.${ending}` }).click();
      URL.revokeObjectURL(address);
    });
    return button;
  };
  const link = make("button", { type: "button", textContent: "Copy link" });
  link.dataset.form = "link";
  link.addEventListener("click", async () => {
    link.dataset.copied = location.href;
    const done = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
    $("status").textContent = done ? "link copied" : "not copied: the browser refused";
  });
  group.append(save("csv", "csv"), save("markdown", "md"), link);
  return group;
}
document.querySelector(".copies").replaceWith(copies(null));

// start -----------------------------------------------------------------------------------------------------------------

$("question").addEventListener("submit", (event) => {
  event.preventDefault();
  answer();
});
$("question").addEventListener("change", (event) => {
  strange = {};
  if (event.target.name === "mode") mode = event.target.value;
  if (event.target.id === "ray" && mode !== "sizes") mode = "ray";
  arrange();
  if (event.target.id === "architecture" && event.target.value === OWN) read();
  if (event.target.id !== "network") answer();
});

networks();
for (const name of ["optimizer", "parameterization"]) $(name).value = page.first[name];

async function open() {
  const words = follow();
  arrange();
  if (!$("own").hidden) read();
  await answer();
  if (words.get("why") && shown) reason(shown, words.get("why"));
}
addEventListener("hashchange", open);
open();
