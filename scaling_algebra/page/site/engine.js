// Answers to questions: those that were made with the page at once, the others by a worker, one at a time.

export const key = (question) => JSON.stringify(Object.fromEntries(Object.entries(question).sort(([a], [b]) => (a < b ? -1 : 1))));

export class Cancelled extends Error {}

export class Engine {
  /** @param {object} page what page.json holds; @param {(state: string, text: string) => void} tell about loading */
  constructor(page, tell) {
    this.page = page;
    this.tell = tell;
    this.cache = new Map();
    this.flying = null; // the question that the worker has
    this.next = null; // the one that waits for it; only the last one does
    this.count = 0;
    this.start();
  }

  start() {
    // A worker that a blob starts is under the policy of this page; one that an address starts is not.
    const source = `import ${JSON.stringify(new URL("worker.js", import.meta.url).href)};`;
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.worker = new Worker(address, { type: "module" });
    this.failed = "";
    this.worker.onmessage = ({ data }) => {
      if (!data.state) this.hear(data);
      else if (data.state === "failed") this.fail(data.text);
      else this.tell(data.state, data.text);
    };
    this.worker.onerror = (event) => this.fail(`cannot load: ${event.message || "this browser has no module workers"}`);
  }

  fail(text) {
    this.failed = text;
    this.tell("failed", text);
    this.drop(new Error(text));
  }

  drop(error) {
    for (const task of [this.flying, this.next]) task?.reject(error);
    this.flying = this.next = null;
  }

  hear({ id, answer, loading, fault }) {
    const task = this.flying;
    if (task?.id !== id) return;
    if (loading) return task.step(loading);
    if (fault) task.reject(new Error(fault));
    else {
      if (!answer.error && !("text" in answer)) this.cache.set(key(task.question), answer);
      task.resolve(answer);
    }
    this.flying = null;
    this.send();
  }

  send() {
    if (this.flying || !this.next) return;
    [this.flying, this.next] = [this.next, null];
    this.worker.postMessage({ id: this.flying.id, question: this.flying.question });
  }

  /** The answer, if it needs no worker. */
  async ready(question) {
    const name = key(question);
    if (!this.cache.has(name) && this.page.answers[name]) {
      const response = await fetch(new URL(this.page.answers[name], import.meta.url));
      this.cache.set(name, await response.json());
    }
    return this.cache.get(name);
  }

  async ask(question, step = () => {}) {
    const { as, ...plain } = question;
    const answer = await this.ready(plain);
    if (answer && !as) return answer;
    if (as && answer?.copies?.[as] !== undefined) return { text: answer.copies[as] };
    if (this.failed) throw new Error(this.failed);
    return new Promise((resolve, reject) => {
      this.next?.reject(new Cancelled("another question came"));
      this.next = { id: ++this.count, question, resolve, reject, step };
      this.send();
    });
  }

  /** Ends whatever is calculated, and loads the worker anew. */
  cancel() {
    this.worker.terminate();
    this.drop(new Cancelled("cancelled"));
    this.tell("loading", "loading");
    this.start();
  }
}
