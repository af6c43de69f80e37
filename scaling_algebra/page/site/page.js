// The form, the answer and the link between them. What there is to choose and what is precomputed stands in page.json.
import { Cancelled, Engine, key } from "./engine.js";
import { RayMap, point } from "./map.js";

const $ = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...inside);
  return made;
};
const folded = (title, ...inside) => make("details", {}, make("summary", { textContent: title }), ...inside);
const page = await (await fetch(new URL("page.json", import.meta.url))).json();
const { choices } = page;
const FIELDS = ["ray", "base", "target", "lr", "eps", "std", "decay", "optimizer", "parameterization", "readout_init", "epsilon", "architecture", "network"];
const OWN = "own";
const MODES = [...Object.keys(choices.regimes), "ray", "sizes"];
let mode = page.first.regime;
let shown = null; // the question whose answer is on the page
let turns = 0;

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

function networks() {
  const usual = mode === "sizes" ? "Transformer with depth (default)" : "MoE block of the MSSP paper (default)";
  const kept = $("architecture").value;
  options("architecture", [["", usual], ...Object.entries(choices.architectures).map(([x, title]) => [x, `${x}: ${title}`]), [OWN, "your own"]]);
  $("architecture").value = kept;
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
  const said = { ray: "any rates: drag the point, or type them", sizes: "numbers for a large model from those of a small one" };
  const names = { N: "width", N_e: "expert width", M: "experts" };
  const grows = (ray) => Object.keys(names).filter((x) => !ray.split(",").includes(`${x}=0`)).map((x) => names[x]);
  $("hint").textContent = said[mode] ?? `regime ${mode}: ${grows(choices.regimes[mode]).join(", ")} grow alike`;
  map.put(point($("ray").value));
  draw();
  number();
}

function question() {
  const asked = { ask: mode === "sizes" ? "recipe" : "derive" };
  if (choices.regimes[mode]) asked.regime = mode;
  const names = mode === "sizes" ? FIELDS.filter((x) => x !== "ray") : FIELDS.filter((x) => !["base", "target", "lr", "eps", "std", "decay"].includes(x));
  for (const name of names) {
    const value = name === "network" ? $(name).value : $(name).value.trim();
    if (value && !(name === "ray" && asked.regime) && name !== "network") asked[name] = value;
  }
  if (asked.architecture === OWN) {
    delete asked.architecture;
    asked.network = $("network").value;
  }
  return asked;
}

// the link ------------------------------------------------------------------------------------------------------------

function link() {
  const { ask, regime, ...rest } = question();
  const said = new URLSearchParams({ grow: mode, ...rest });
  if (rest.network) said.set("architecture", OWN);
  if ($("what").dataset.asked) said.set("why", $("what").dataset.asked);
  history.replaceState(null, "", `#${said}`);
}

function follow() {
  const said = new URLSearchParams(location.hash.slice(1));
  if (!MODES.includes(said.get("grow"))) return said;
  mode = said.get("grow");
  for (const name of FIELDS) {
    if (name === "network" && !said.has(name)) continue;
    const field = $(name);
    field.value = said.get(name) ?? "";
    if (field.tagName === "SELECT" && field.selectedIndex < 0) field.selectedIndex = 0;
  }
  return said;
}

// the map -------------------------------------------------------------------------------------------------------------

const map = new RayMap(
  $("map"),
  (ray, done) => {
    mode = "ray";
    $("ray").value = ray;
    if (!done) return;
    $("said").textContent = ray;
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
  const known = choices.maps.includes(mine) && !$("epsilon").value && !$("readout_init").value;
  const name = known ? mine : choices.maps[0];
  const asked = [mine.replace("-", " "), ...["readout_init", "epsilon"].map((x) => $(x).value && `${x} ${$(x).value}`)].filter(Boolean).join(", ");
  if (wanted !== asked) {
    wanted = asked;
    maps[name] ??= await (await fetch(new URL(`maps/${name}.json`, import.meta.url))).json();
    if (wanted !== asked) return;
    map.show(maps[name], !known);
    const none = maps[name].cells.every((cell) => !cell.name);
    const said = none ? "No cell has a formula; the green walls have, and the regimes lie on them." : "A cell has one formula. Dots are the regimes.";
    $("map-hint").textContent = known ? `N grows at rate 1. ${said}` : `No map of ${asked}; there are maps of ${choices.maps.join(", ").replaceAll("-", " ")}, as defined.`;
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
  const found = await engine.ask({ ask: "read", network: text }).catch((fault) => ({ error: fault.message }));
  if (text !== $("network").value) return;
  complain(found.error, found.line);
  if (found.error) return;
  $("read").textContent = found.equations;
  $("quantities").replaceChildren(...found.quantities.map((x) => new Option(x)));
}

// the answer ------------------------------------------------------------------------------------------------------------

/** Asks, with a line that says so and a button that ends it; null where another question came first. */
async function wait(asked, text) {
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
    const found = await engine.ask(asked, (said) => (step = said));
    return mine === turns ? found : null;
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
  $("said").textContent = "cancelled";
  $("answer").dataset.state = "cancelled";
  $("more").dataset.state = "cancelled";
  for (const id of ["document", "place"]) $(id).classList.remove("stale");
});

async function answer() {
  const asked = question();
  delete $("what").dataset.asked;
  link();
  $("answer").dataset.state = "busy";
  for (const id of ["document", "place"]) $(id).classList.add("stale");
  if (engine.flying?.question.ask === "prove") engine.cancel(); // nobody waits for it any more
  const found = await wait(asked, asked.ask === "recipe" ? "carrying the values over" : "deriving");
  if (!found) return;
  for (const id of ["document", "place"]) $(id).classList.remove("stale");
  shown = found.error ? null : asked;
  $("more").hidden = true;
  $("error").hidden = !found.error;
  $("error").textContent = found.error ?? "";
  $("tools").hidden = Boolean(found.error) && !found.missing;
  $("prove").hidden = asked.ask !== "derive" || !choices.derived.includes(asked.parameterization);
  $("explain").hidden = asked.ask !== "derive" || Boolean(found.error);
  document.querySelector(".copies").hidden = Boolean(found.error);
  if (asked.network) complain(found.error, found.line);
  if (found.missing) shown = asked;
  $("document").replaceChildren();
  $("place").hidden = !found.place;
  $("place").textContent = found.place ? `On the map: ${found.place}` : "";
  if (!found.error) {
    write($("document"), found.html, $("answer-title"));
    if (asked.ask === "derive") numbers(asked);
  } else $("answer-title").textContent = "No answer";
  $("said").textContent = found.error ?? `answer: ${$("answer-title").textContent}`;
  $("answer").dataset.key = key(asked);
  $("answer").dataset.state = found.error ? "error" : "shown";
  performance.mark("answered");
}

/** A document into a place: its title into a heading that is there, what only some want to read folded. */
function write(place, html, title) {
  const made = new DOMParser().parseFromString(html, "text/html").body;
  const first = made.querySelector("h1");
  if (first && title) {
    title.innerHTML = first.innerHTML;
    first.remove();
  }
  for (const old of made.querySelectorAll("h1, h2, h3")) {
    const level = Number(old.tagName[1]) + (title?.tagName === "H2" && place.id === "document" ? 1 : 2);
    old.replaceWith(make(`h${level}`, { innerHTML: old.innerHTML }));
  }
  const titles = { why: () => "Why each number, in a line", structure: (list) => list?.querySelector("li")?.textContent };
  for (const heading of [...made.querySelectorAll("h3")].filter((h) => h.textContent in titles)) {
    const text = titles[heading.textContent](heading.nextElementSibling) ?? heading.textContent;
    const details = folded(text[0].toUpperCase() + text.slice(1));
    while (heading.nextElementSibling && !/^H\d$/.test(heading.nextElementSibling.tagName)) details.append(heading.nextElementSibling);
    heading.replaceWith(details);
  }
  place.replaceChildren(...made.childNodes);
}

/** Every number of the table becomes a button that asks for its reason. */
function numbers(asked) {
  const table = $("document").querySelector("table");
  table.classList.add("powers");
  const heads = [...table.querySelectorAll("thead th")].map((th) => th.textContent);
  for (const row of table.querySelectorAll("tbody tr")) {
    const role = row.querySelector("th").title;
    [...row.cells].forEach((cell, k) => {
      const what = { "init std": "init", lr: "lr", eps: "eps" }[heads[k]];
      if (!what || cell.textContent === "–") return;
      const button = make("button", { type: "button", className: "number", innerHTML: cell.innerHTML });
      button.setAttribute("aria-label", `${role} ${heads[k]}: ${cell.textContent}; why?`);
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => reason(asked, `${role}.${what}`, button));
      cell.replaceChildren(button);
    });
  }
}

/** A second question about what is shown: its answer goes into a panel below. */
async function further(asked, text) {
  $("more").dataset.state = "busy";
  const found = await wait(asked, text);
  if (!found) return null;
  const panel = $("more");
  panel.replaceChildren();
  panel.hidden = false;
  if (found.error) panel.append(make("p", { className: "error", textContent: found.error }));
  else {
    const [title, body] = [make("h3"), make("div")];
    write(body, found.html, title);
    if (asked.ask === "prove") proof(body, title);
    const first = body.querySelector("p");
    const picture = make("div", { className: "picture", innerHTML: found.picture, tabIndex: 0 });
    panel.append(title, ...(found.picture ? [...(first ? [first] : []), picture, folded("Step by step", body)] : [body]), copies(asked));
  }
  panel.dataset.state = found.error ? "error" : "shown";
  panel.dataset.key = key(asked);
  $("said").textContent = panel.querySelector("h3, p").textContent;
  panel.scrollIntoView({ block: "nearest" });
  return found;
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

async function reason(asked, what, button) {
  for (const other of document.querySelectorAll("button.number")) other.setAttribute("aria-pressed", String(other === button));
  $("what").value = what;
  $("what").dataset.asked = what;
  link();
  await further({ ...asked, ask: "explain", what }, `explaining ${what}`);
}

$("explain").addEventListener("submit", (event) => {
  event.preventDefault();
  if (shown && $("what").value.trim()) reason(shown, $("what").value.trim());
});
$("prove").addEventListener("click", () => shown && further({ ...shown, ask: "prove" }, "proving"));

// copies ----------------------------------------------------------------------------------------------------------------

function copies(asked) {
  const group = make("div", { className: "copies" }, make("span", { textContent: "Copy as", ariaHidden: "true" }));
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Copy as");
  const titles = { latex: "LaTeX", json: "JSON" };
  for (const form of choices.copies) {
    const title = titles[form] ?? form[0].toUpperCase() + form.slice(1);
    const button = make("button", { type: "button", textContent: title });
    button.dataset.form = form;
    button.addEventListener("click", async () => {
      const found = await wait({ ...(asked ?? shown), as: form }, `writing ${title}`);
      if (!found) return;
      button.dataset.copied = found.text ?? "";
      const done = found.text !== undefined && (await navigator.clipboard.writeText(found.text).then(() => true, () => false));
      button.textContent = done ? "Copied" : "Not copied";
      $("said").textContent = done ? `copied as ${title}` : `not copied: ${found.error ?? "the browser refused"}`;
      setTimeout(() => (button.textContent = title), 1500);
    });
    group.append(button);
  }
  return group;
}
document.querySelector(".copies").replaceWith(copies(null));

// start -----------------------------------------------------------------------------------------------------------------

$("question").addEventListener("submit", (event) => {
  event.preventDefault();
  answer();
});
$("question").addEventListener("change", (event) => {
  if (event.target.name === "mode") mode = event.target.value;
  if (event.target.id === "ray" && mode !== "sizes") mode = "ray";
  arrange();
  if (event.target.id === "architecture" && event.target.value === OWN) read();
  if (event.target.id !== "network") answer();
});

networks();
for (const name of ["optimizer", "parameterization"]) $(name).value = page.first[name];

async function open() {
  const said = follow();
  arrange();
  if (!$("own").hidden) read();
  await answer();
  if (said.get("why") && shown) reason(shown, said.get("why"));
}
addEventListener("hashchange", open);
open();
