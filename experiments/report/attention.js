// Attention of two runs side by side on one sentence: every layer and head, and their mean.
const controls = document.getElementById("controls");
const trials = data.attention;

const fill = (select, texts, values = texts.map((_, i) => i)) => {
  const kept = select.value;
  select.replaceChildren(...texts.map((text, i) => new Option(text, values[i])));
  if ([...select.options].some(option => option.value === kept)) select.value = kept;
};

async function unpack(map) {
  // adds the mean over the heads that a layer has as one head more
  if (map.bytes) return;
  const packed = new Blob([Uint8Array.from(atob(map.weights), letter => letter.charCodeAt(0))]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const {layers, heads} = map,
    size = map.queries.length * map.keys.length;
  map.bytes = new Uint8Array(layers * (heads + 1) * size);
  for (let layer = 0; layer < layers; layer++) {
    const from = layer * heads * size,
      to = layer * (heads + 1) * size,
      there = [...Array(heads).keys()].filter(head => map.there[layer][head]);
    map.there[layer][heads] = there.length > 0;
    map.bytes.set(bytes.subarray(from, from + heads * size), to);
    for (let i = 0; i < size; i++) {
      let sum = 0;
      for (const head of there) sum += bytes[from + head * size + i];
      map.bytes[to + heads * size + i] = Math.round(sum / Math.max(there.length, 1));
    }
  }
}

class Side {
  constructor(name) {
    this.root = document.getElementById(name);
    this.select = controls[name];
    this.large = this.root.querySelector(".large");
    this.heads = this.root.querySelector(".heads");
    this.canvas = this.large.querySelector("canvas");
    this.chosen = {}; // {kind: [layer, head]}, by a reader's hand
    this.cell = [0, 0];
    this.follow(this.canvas, () => this.at);
    this.canvas.onkeydown = event => this.move(event);
    this.canvas.onblur = () => this.leave();
    this.root.querySelector(".translation").after(saver(`attention-${name}`, () => this.picture()));
  }

  get trial() {
    return trials[this.select.value];
  }
  get at() {
    // the layer and head that are shown large
    const [layer, head] = this.chosen[controls.kind.value] ?? this.trial.telling[controls.kind.value];
    const at = [Math.min(layer, this.map.layers - 1), Math.min(head, this.map.heads)];
    return this.map.there[at[0]][at[1]] ? at : this.trial.telling[controls.kind.value];
  }
  offset(layer, head) {
    return (layer * (this.map.heads + 1) + head) * this.map.queries.length * this.map.keys.length;
  }
  name(head) {
    return head === this.map.heads ? "mean of heads" : `head ${head + 1}`;
  }

  async show(source) {
    const trial = this.trial,
      example = trial?.examples.find(example => example.source === source);
    this.root.hidden = !trial;
    if (!trial) return;
    this.map = example?.maps[controls.kind.value];
    const lacking = example ? `without ${controls.kind.value} attention` : "did not keep this sentence";
    this.root.querySelector(".translation").textContent = example ? example.translation : "";
    this.large.hidden = this.heads.hidden = !this.map;
    this.root.querySelector("h3").textContent = `${trial.name}: ${lacking}`;
    if (!this.map) return;
    const map = this.map;
    await unpack(map);
    if (map === this.map) this.draw();
  }

  draw() {
    // a button for each layer and head, and one of them large
    const {layers, heads} = this.map,
      cells = [make("span")];
    this.heads.style.setProperty("--heads", heads + 1);
    for (let head = 0; head <= heads; head++)
      cells.push(make("span", head < heads ? `head ${head + 1}` : "mean", {className: "head"}));
    for (let layer = 0; layer < layers; layer++) {
      cells.push(make("span", `layer ${layer + 1}`));
      for (let head = 0; head <= heads; head++) {
        if (!this.map.there[layer][head]) {
          cells.push(make("span"));
          continue;
        }
        const label = `layer ${layer + 1}, ${this.name(head)}`,
          button = make("button", "", {type: "button", value: `${layer} ${head}`, ariaLabel: label});
        const canvas = button.appendChild(make("canvas"));
        button.onclick = () => {
          this.chosen[controls.kind.value] = [layer, head];
          this.enlarge();
        };
        this.paint(canvas, layer, head);
        this.follow(canvas, () => [layer, head]);
        cells.push(button);
      }
    }
    this.heads.replaceChildren(...cells);
    this.enlarge();
  }

  enlarge() {
    const [layer, head] = this.at,
      {queries, keys} = this.map;
    const cell = Math.max(13, Math.min(30, Math.floor(400 / Math.max(queries.length, keys.length))));
    this.large.style.cssText = `--cell: ${cell}px; --n: ${queries.length}; --m: ${keys.length}`;
    this.root.querySelector("h3").textContent =
      `${this.trial.name}: ${controls.kind.value} attention, layer ${layer + 1}, ${this.name(head)}`;
    this.large.querySelector(".queries").replaceChildren(...queries.map(token => make("li", token)));
    this.large.querySelector(".keys").replaceChildren(...keys.map(token => make("li", token)));
    this.paint(this.canvas, layer, head);
    this.heads
      .querySelectorAll("button")
      .forEach(button => (button.ariaPressed = String(button.value === `${layer} ${head}`)));
  }

  paint(canvas, layer, head) {
    // a pixel a cell; the style sheet scales it
    const n = this.map.queries.length,
      m = this.map.keys.length,
      first = this.offset(layer, head),
      image = new ImageData(m, n);
    for (let i = 0; i < n * m; i++) image.data.set([...ink, this.map.bytes[first + i]], 4 * i);
    [canvas.width, canvas.height] = [m, n];
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  picture() {
    // the large map as an <svg>
    const {queries, keys, bytes} = this.map,
      first = this.offset(...this.at),
      cell = 16,
      font = 10;
    const left = 8 + 0.65 * font * Math.max(...queries.map(token => token.length)),
      top = 8 + 0.65 * font * Math.max(...keys.map(token => token.length));
    const [width, height] = [left + cell * keys.length + 2, top + cell * queries.length + 2];
    const svg = shape("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      "font-family": "sans-serif",
      "font-size": font,
    });
    queries.forEach((token, i) =>
      svg.append(shape("text", {x: left - 4, y: top + (i + 0.7) * cell, "text-anchor": "end"}, token)),
    );
    keys.forEach((token, j) =>
      svg.append(shape("text", {transform: `translate(${left + (j + 0.7) * cell} ${top - 4}) rotate(-90)`}, token)),
    );
    queries.forEach((_, i) =>
      keys.forEach((_, j) => {
        const weight = (bytes[first + i * keys.length + j] / 255).toFixed(3);
        svg.append(
          shape("rect", {
            x: left + j * cell,
            y: top + i * cell,
            width: cell,
            height: cell,
            fill: "#08407e",
            "fill-opacity": weight,
          }),
        );
      }),
    );
    svg.append(
      shape("rect", {
        x: left,
        y: top,
        width: cell * keys.length,
        height: cell * queries.length,
        fill: "none",
        stroke: "#d9dee3",
      }),
    );
    return svg;
  }

  point(canvas, [layer, head], row, column) {
    // says what one cell holds, beside it
    const {queries, keys, bytes} = this.map,
      box = canvas.getBoundingClientRect();
    const weight = bytes[this.offset(layer, head) + row * keys.length + column] / 255;
    say(
      `${queries[row]} → ${keys[column]}   ${weight.toFixed(2)}`,
      box.left + ((column + 1) * box.width) / keys.length + 8,
      box.top + ((row + 1) * box.height) / queries.length + 8,
    );
    this.mark(row, column);
  }

  mark(row, column) {
    this.large.querySelectorAll(".queries li").forEach((item, i) => item.classList.toggle("on", i === row));
    this.large.querySelectorAll(".keys li").forEach((item, i) => item.classList.toggle("on", i === column));
  }

  leave() {
    tip.hidden = true;
    this.mark();
  }

  follow(canvas, where) {
    canvas.onpointermove = event => {
      const box = canvas.getBoundingClientRect(),
        {queries, keys} = this.map;
      const cell = (at, length, cells) => Math.max(0, Math.min(cells - 1, Math.floor((at / length) * cells)));
      this.point(
        canvas,
        where(),
        cell(event.clientY - box.top, box.height, queries.length),
        cell(event.clientX - box.left, box.width, keys.length),
      );
    };
    canvas.onpointerleave = () => this.leave();
  }

  move(event) {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!step) return;
    event.preventDefault();
    const sizes = [this.map.queries.length, this.map.keys.length];
    this.cell = this.cell.map((place, i) => Math.max(0, Math.min(sizes[i] - 1, place + step[i])));
    this.point(this.canvas, this.at, ...this.cell);
  }
}

let ink = [8, 64, 126];
function show() {
  ink = getComputedStyle(document.documentElement).getPropertyValue("--accent-rgb").split(",").map(Number);
  fill(
    controls.sentence,
    trials[controls.first.value].examples.map(example => example.source),
  );
  const example = trials[controls.first.value].examples[controls.sentence.value];
  for (const text of ["source", "reference"]) {
    // Lines that were just translated have no reference.
    const place = document.getElementById(text);
    if (place) place.textContent = example[text];
  }
  for (const input of controls.kind) input.disabled = !(input.value in example.maps);
  if (!(controls.kind.value in example.maps)) controls.kind.value = Object.keys(example.maps)[0];
  tip.hidden = true;
  sides.forEach(side => side.show(example.source));
}

const sides = controls ? ["first", "second"].map(name => new Side(name)) : [];
if (controls) {
  const names = trials.map(trial => trial.name);
  fill(controls.first, names);
  fill(controls.second, ["nothing", ...names], ["", ...names.keys()]);
  controls.second.value = data.beside ?? "";
  controls.onchange = show;
  controls.onsubmit = event => event.preventDefault();
  matchMedia("(prefers-color-scheme: dark)").onchange = show;
  // Paper is white, whatever the screen is.
  onbeforeprint = () => {
    ink = [8, 64, 126];
    sides.forEach(side => side.map?.bytes && side.draw());
  };
  onafterprint = show;
  show();
}
