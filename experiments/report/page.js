"use strict";
const trials = JSON.parse(document.getElementById("attention").textContent).trials;
const form = document.getElementById("controls"), large = document.getElementById("large");
const heads = document.getElementById("heads"), tip = document.getElementById("tip");
const chosen = {layer: 0, head: 0, row: 0, column: 0};
let map;  // of the chosen trial, sentence and kind: {layers, heads, queries, keys, bytes}

const make = (name, text = "", attributes = {}) => Object.assign(document.createElement(name), {textContent: text}, attributes);
const fill = (select, texts) => {
  const kept = Math.max(0, Math.min(select.selectedIndex, texts.length - 1));
  select.replaceChildren(...texts.map((text, i) => new Option(text, i, false, i === kept)));
};
async function unpack(map) {
  const packed = new Blob([Uint8Array.from(atob(map.weights), letter => letter.charCodeAt(0))]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
  map.bytes = new Uint8Array(await new Response(stream).arrayBuffer());
}
const weight = (layer, head, row, column) =>
  map.bytes[((layer * map.heads + head) * map.queries.length + row) * map.keys.length + column] / 255;

function draw(canvas, layer, head) {  // a pixel a cell; the style sheet scales it
  const n = map.queries.length, m = map.keys.length, size = n * m, first = (layer * map.heads + head) * size;
  const image = new ImageData(m, n);
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--accent-rgb").split(",").map(Number);
  for (let i = 0; i < size; i++) image.data.set([...ink, map.bytes[first + i]], 4 * i);
  [canvas.width, canvas.height] = [m, n];
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function point(canvas, layer, head, row, column) {  // says what one cell holds, beside it
  const {queries, keys} = map, box = canvas.getBoundingClientRect();
  tip.textContent = `${queries[row]} → ${keys[column]}   ${weight(layer, head, row, column).toFixed(2)}`;
  tip.hidden = false;
  const left = box.left + (column + 1) * box.width / keys.length + 8, top = box.top + (row + 1) * box.height / queries.length + 8;
  tip.style.left = `${Math.max(0, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.min(top, innerHeight - tip.offsetHeight - 8)}px`;
  mark(row, column);
}

function mark(row, column) {
  large.querySelectorAll(".queries li").forEach((item, i) => item.classList.toggle("on", i === row));
  large.querySelectorAll(".keys li").forEach((item, i) => item.classList.toggle("on", i === column));
}

function leave() { tip.hidden = true; mark(); }

function follow(canvas, where) {
  canvas.onpointermove = event => {
    const box = canvas.getBoundingClientRect(), {queries, keys} = map;
    const cell = (at, length, cells) => Math.max(0, Math.min(cells - 1, Math.floor(at / length * cells)));
    point(canvas, ...where(), cell(event.clientY - box.top, box.height, queries.length),
          cell(event.clientX - box.left, box.width, keys.length));
  };
  canvas.onpointerleave = leave;
}

function show() {  // the large map
  const {layer, head} = chosen, {queries, keys} = map, canvas = large.querySelector("canvas");
  const cell = Math.max(13, Math.min(30, Math.floor(460 / Math.max(queries.length, keys.length))));
  large.style.cssText = `--cell: ${cell}px; --n: ${queries.length}; --m: ${keys.length}`;
  large.querySelector("h3").textContent = `${form.kind.value} attention, layer ${layer + 1}, head ${head + 1}`;
  large.querySelector(".queries").replaceChildren(...queries.map(token => make("li", token)));
  large.querySelector(".keys").replaceChildren(...keys.map(token => make("li", token)));
  draw(canvas, layer, head);
  heads.querySelectorAll("button").forEach(button => button.ariaPressed = button.value === `${layer} ${head}`);
}

function grid() {  // every layer and head, each a button
  heads.style.setProperty("--heads", map.heads);
  const cells = [make("span")];
  for (let head = 0; head < map.heads; head++) cells.push(make("span", `head ${head + 1}`, {className: "head"}));
  for (let layer = 0; layer < map.layers; layer++) {
    cells.push(make("span", `layer ${layer + 1}`));
    for (let head = 0; head < map.heads; head++) {
      const button = make("button", "", {type: "button", value: `${layer} ${head}`, ariaLabel: `layer ${layer + 1}, head ${head + 1}`});
      const canvas = button.appendChild(make("canvas"));
      button.onclick = () => { Object.assign(chosen, {layer, head}); show(); };
      draw(canvas, layer, head);
      follow(canvas, () => [layer, head]);
      cells.push(button);
    }
  }
  heads.replaceChildren(...cells);
}

function update() {
  const {examples} = trials[form.trial.value];
  fill(form.sentence, examples.map(example => example.source));
  const example = examples[form.sentence.value];
  for (const text of ["source", "reference", "translation"]) document.getElementById(text).textContent = example[text];
  for (const input of form.kind) input.disabled = !(input.value in example.maps);
  if (!(form.kind.value in example.maps)) form.kind.value = Object.keys(example.maps)[0];
  map = example.maps[form.kind.value];
  Object.assign(chosen, {layer: Math.min(chosen.layer, map.layers - 1), head: Math.min(chosen.head, map.heads - 1), row: 0, column: 0});
  leave();
  grid();
  show();
}

const canvas = large.querySelector("canvas");
follow(canvas, () => [chosen.layer, chosen.head]);
canvas.onkeydown = event => {
  const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
  if (!step) return;
  event.preventDefault();
  chosen.row = Math.max(0, Math.min(map.queries.length - 1, chosen.row + step[0]));
  chosen.column = Math.max(0, Math.min(map.keys.length - 1, chosen.column + step[1]));
  point(canvas, chosen.layer, chosen.head, chosen.row, chosen.column);
};
canvas.onblur = leave;
form.onchange = update;
form.onsubmit = event => event.preventDefault();
matchMedia("(prefers-color-scheme: dark)").onchange = update;
fill(form.trial, trials.map(trial => trial.name));
Promise.all(trials.flatMap(trial => trial.examples.flatMap(example => Object.values(example.maps).map(unpack)))).then(update);
