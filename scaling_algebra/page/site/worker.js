// The package, unmodified, under Pyodide. Takes {id, question}, gives {id, answer}; {state, text} says how far loading is.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const say = (state, text) => postMessage({ state, text });
const waiting = [];
let page, pyodide, answer;

async function load(wheels) {
  await pyodide.loadPackage(wheels.map((w) => new URL(`wheels/${w.file}`, import.meta.url).href), { messageCallback() {} });
}

async function ask({ id, question }) {
  for (const tried = new Set(); ; ) {
    const reply = JSON.parse(answer(JSON.stringify(question)));
    const wheels = page.wheels.filter((w) => w.for === reply.needs);
    if (!reply.needs || !wheels.length || tried.has(reply.needs)) return postMessage({ id, answer: reply });
    tried.add(reply.needs);
    postMessage({ id, loading: `loading ${reply.needs}` });
    await load(wheels);
  }
}

let turn = Promise.resolve();
const queue = (message) => {
  turn = turn.then(() => ask(message)).catch((error) => postMessage({ id: message.id, fault: String(error.message || error) }));
};
onmessage = ({ data }) => (answer ? queue(data) : waiting.push(data));

try {
  say("loading", "loading Python");
  [page, pyodide] = await Promise.all([
    fetch(new URL("page.json", import.meta.url)).then((response) => response.json()),
    loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href }),
  ]);
  say("loading", "loading the package");
  await load(page.wheels.filter((w) => !w.for));
  const module = pyodide.pyimport("scaling_algebra.page.questions");
  if (!waiting.length) {
    say("loading", "warming up");
    module.answer(JSON.stringify(page.first)); // imports what every derivation imports
  }
  answer = module.answer;
  say("ready", "ready: everything runs in this browser");
  waiting.forEach(queue);
} catch (error) {
  say("failed", `cannot load: ${error.message || error}`);
}
