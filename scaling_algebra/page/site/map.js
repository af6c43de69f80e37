// The map of rays with a point to drag: by pointer, by touch, or with the arrow keys. What is drawn comes with the page.

const STEP = 8; // a rate is a multiple of 1/8
const NS = "http://www.w3.org/2000/svg";

export const fraction = (eighths) => {
  let [a, b] = [eighths, STEP];
  while (b > 1 && a % 2 === 0) [a, b] = [a / 2, b / 2];
  return b === 1 ? `${a}` : `${a}/${b}`;
};
const value = (text) => {
  const [a, b = "1"] = text.split("/");
  return Number(a) / Number(b);
};

/** Rates in the plane (N_e and M over N) of a ray as text; null where it has none. */
export function point(ray) {
  const rates = Object.fromEntries(ray.split(",").map((part) => part.split("=").map((x) => x.trim())));
  const at = ["N_e", "M"].map((axis) => value(rates[axis] ?? "x") / value(rates.N ?? "x"));
  return at.every((x) => Number.isFinite(x) && x >= 0) ? at : null;
}

export class RayMap {
  constructor(place, moved, regime) {
    Object.assign(this, { place, moved, regime, at: [1, 1] });
  }

  /** @param {object} record a file of maps/; @param {boolean} plain without its cells */
  show(record, plain) {
    this.frame = record.frame;
    this.place.innerHTML = record.svg;
    this.svg = this.place.querySelector("svg");
    this.svg.classList.toggle("plain", plain);
    this.svg.setAttribute("role", "group");
    this.svg.setAttribute("aria-label", `map of rays: ${record.about}`);
    for (const shape of this.svg.querySelectorAll("[data-choice]")) {
      const label = shape.getAttribute("aria-label");
      ["tabindex", "role", "aria-label"].forEach((name) => shape.removeAttribute(name));
      const name = /^regime (\w+)/.exec(label)?.[1];
      if (name) shape.addEventListener("click", (event) => (event.stopPropagation(), this.regime(name)));
      if (plain && !name) shape.querySelector("title")?.remove();
    }
    this.handle = document.createElementNS(NS, "g");
    this.handle.id = "handle";
    this.handle.innerHTML =
      '<circle r="22" fill="transparent"/><circle class="halo" r="13" fill="none" stroke="#1f6584" stroke-width="3" stroke-opacity=".25"/>' +
      '<circle r="8" fill="#1f6584" fill-opacity=".85" stroke="#fff" stroke-width="2"/>';
    for (const [name, text] of Object.entries({ tabindex: 0, role: "slider", "aria-label": "ray; arrow keys move it", "aria-valuemin": 0, "aria-valuemax": this.frame.most })) {
      this.handle.setAttribute(name, text);
    }
    this.svg.append(this.handle);
    this.listen();
    this.put(this.at);
  }

  listen() {
    let held = false;
    const near = (event) => {
      const { left, top, side, most } = this.frame;
      const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
      return [(p.x - left) / side, (top + side - p.y) / side].map((x) => this.bound(x * most));
    };
    this.handle.addEventListener("pointerdown", (event) => {
      held = true;
      this.handle.setPointerCapture(event.pointerId);
      this.place.classList.add("dragging");
      event.preventDefault();
      this.handle.focus({ preventScroll: true });
    });
    this.handle.addEventListener("pointermove", (event) => held && this.set(near(event), false));
    const end = (event) => {
      if (!held) return;
      held = false;
      this.place.classList.remove("dragging");
      this.set(event.type === "pointerup" ? near(event) : this.at, true);
    };
    ["pointerup", "pointercancel"].forEach((name) => this.handle.addEventListener(name, end));
    this.svg.addEventListener("click", (event) => this.handle.contains(event.target) || this.set(near(event), true));
    this.handle.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
      if (!way) return;
      event.preventDefault();
      const far = (event.shiftKey ? 4 : 1) / STEP;
      this.set(this.at.map((x, k) => this.bound(x + way[k] * far)), true);
    });
  }

  bound(x) {
    return Math.min(this.frame.most, Math.max(0, Math.round(x * STEP) / STEP));
  }

  set(at, done) {
    this.put(at);
    const [x, y] = at.map((v) => fraction(Math.round(v * STEP)));
    this.moved(`N=1,N_e=${x},M=${y}`, done);
  }

  put(at) {
    this.at = at ?? this.at;
    if (!this.handle) return;
    const { left, top, side, most } = this.frame;
    const [x, y] = this.at;
    this.handle.setAttribute("transform", `translate(${left + (x * side) / most} ${top + side - (y * side) / most})`);
    this.handle.style.visibility = at && x <= most && y <= most ? "" : "hidden";
    this.handle.setAttribute("aria-valuenow", x);
    this.handle.setAttribute("aria-valuetext", `rate of N_e ${+x.toFixed(3)}, rate of M ${+y.toFixed(3)}`);
  }
}
