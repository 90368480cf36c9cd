// Tables that are searched and filtered, and their columns.
const table = document.getElementById("table"),
  filter = document.getElementById("filter");
function narrow() {
  // shows the rows, in all tables, that are asked for
  const words = filter.text.value.toLowerCase().split(/\s+/).filter(Boolean),
    verdict = filter.verdict?.value;
  const rows = [...table.tBodies[0].rows],
    shown = new Set();
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    if (words.every(word => text.includes(word)) && (!verdict || row.dataset.verdicts.split(" ").includes(verdict)))
      shown.add(row.dataset.row);
  }
  document.querySelectorAll("[data-row]").forEach(row => (row.hidden = !shown.has(row.dataset.row)));
  filter.querySelector("output").textContent =
    shown.size < rows.length ? `${shown.size} of ${rows.length} rows` : `${rows.length} rows`;
}

for (const figure of document.querySelectorAll("figure[data-picture]")) {
  const svg = figure.querySelector("svg"),
    spots = data.spots[figure.dataset.picture];
  if (spots.length) pointed(figure, svg, spots);
  figure.querySelector("figcaption").append(saver(figure.dataset.picture, () => svg));
}
function worded(cell, text) {
  // verdicts, each in its colour
  cell.replaceChildren(
    ...text.split("; ").flatMap((part, i) => [
      i ? "; " : "",
      make("span", part, {className: part.split(" ")[0].replace(/[:,]$/, "")}),
    ]),
  );
}

function drawn(cell, bar) {
  // an interval on the scale of its column
  cell.replaceChildren();
  if (!bar) return;
  const [low, mean, high, isCutLow, isCutHigh, verdict] = bar;
  const svg = shape("svg", {class: `interval ${verdict.split(" ")[0]}`, viewBox: "0 0 100 12", "aria-hidden": "true"});
  const cut = (isCutLow ? "M6 3L2 6L6 9" : "") + (isCutHigh ? "M94 3L98 6L94 9" : "");
  svg.append(
    shape("path", {class: "zero", d: "M50 0V12"}),
    shape("path", {d: `M${low} 6H${high}${cut}`}),
    shape("circle", {cx: mean, cy: 6, r: 2.6}),
  );
  cell.append(svg);
}

function against(place) {
  // shows the table as compared with another row, all intervals of that question anew
  const chosen = data.bases[place],
    options = filter.base.options,
    isOwn = options[place].defaultSelected,
    name = isOwn ? "base" : options[place].textContent;
  document.getElementById("finding").textContent = chosen.finding;
  for (const row of table.tBodies[0].rows) {
    row.dataset.verdicts = chosen.kinds[row.dataset.row];
    worded(row.cells[row.cells.length - 1], chosen.verdicts[row.dataset.row]);
  }
  const heading = table.tHead.rows[0].lastElementChild;
  (heading.querySelector("button") ?? heading).textContent = `against ${name}`;
  for (const cell of document.querySelectorAll("[data-pivot] td[data-cell]")) {
    const of = chosen.differences[cell.closest("table").dataset.pivot],
      row = Number(cell.dataset.cell),
      kind = row === place ? "base" : (of?.cells[row][5] ?? "").split(/[ :;]/)[0];
    cell.className = kind;
    cell.querySelector(".mark").textContent = data.marks[kind] ?? "";
  }
  for (const table of document.querySelectorAll("table[data-metric]")) {
    const of = chosen.differences[table.dataset.metric],
      title = document.getElementById(`differences-${table.dataset.metric}`);
    title.textContent = title.textContent.replace(/: differences to .*/, `: differences to ${name}`);
    // From the difference to the verdict; what a paper has stands behind.
    for (const row of table.tBodies[0].rows) {
      const cells = of?.cells[row.dataset.row] ?? Array(6).fill("–");
      let column = 2;
      cells.forEach((text, i) => {
        const cell = row.cells[column++];
        if (i === 5) worded(cell, text);
        else cell.textContent = text;
        if (i === 1 && row.cells[column].classList.contains("bar"))
          drawn(row.cells[column++], of?.bars[row.dataset.row]);
      });
      for (const cell of [...row.cells].slice(column)) cell.classList.toggle("stale", !isOwn);
    }
  }
  document.getElementById("own-base").hidden = isOwn;
  document.getElementById("figure-differences").hidden = !isOwn;
  narrow();
}
if (filter.base) filter.base.onchange = () => against(Number(filter.base.value));

document.querySelectorAll("table.grid:not(.pivot)").forEach(sortable);
// A few rows need no search.
filter.hidden = table.tBodies[0].rows.length < 5 && !filter.base;
filter.oninput = event => {
  // Of a product the rows are folded, below their pivot tables.
  if (event.target !== filter.base) document.getElementById("rows")?.setAttribute("open", "");
  narrow();
};
filter.onsubmit = event => event.preventDefault();
narrow();

// Columns that are shown, and what is shown as a file or on paper.
const headings = [...table.tHead.rows[0].cells];
headings.forEach((heading, column) => {
  if (!column) return;
  const box = make("input", "", {type: "checkbox", checked: !heading.hidden});
  const label = make("label");
  label.append(box, heading.textContent);
  box.onchange = () => {
    for (const row of table.rows) row.cells[column].hidden = !box.checked;
  };
  document.querySelector(".columns > div").append(label);
});

function shownCells() {
  // the texts of the rows and columns that are shown
  const rows = [...table.rows].filter(row => !row.hidden);
  return rows.map(row => [...row.cells].filter(cell => !cell.hidden).map(cell => cell.textContent.trim()));
}

function csv() {
  const quoted = text => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  // A spreadsheet computes what begins with one of these, but for a number.
  const safe = text => (/^[=@]|^[+-](?![\d.]|inf)/.test(text) ? `'${text}` : text);
  const lines = shownCells().map(cells => cells.map(text => quoted(safe(text))).join(","));
  return new Blob([lines.join("\n") + "\n"], {type: "text/csv"});
}
const tools = document.querySelector(".tools");
const asCsv = make("button", "save as CSV", {type: "button", className: "save"});
asCsv.onclick = () => save(csv(), "table.csv");
const onPaper = make("button", "print, or save as PDF", {type: "button", className: "save"});
onPaper.onclick = () => print();
tools.append(asCsv, onPaper);

// Paper has what is folded too, but for the runs.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.fold:not([open], #runs)")];
  opened.forEach(fold => (fold.open = true));
});
addEventListener("afterprint", () => opened.forEach(fold => (fold.open = false)));

function reveal() {
  // what a link names, in whatever fold
  const named = document.getElementById(location.hash.slice(1));
  if (!named) return;
  for (let fold = named.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  named.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
