"use strict";
// What the scripts of all pages have in common: elements, the line beside the pointer, saved pictures,
// tables that are sorted, figures that say their values.
const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const make = (name, text = "", attributes = {}) =>
  Object.assign(document.createElement(name), {textContent: text}, attributes);

const shape = (name, attributes, text = "") => {
  // an element of an SVG
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
};

function say(text, left, top) {
  // beside a place of the window, and within it
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.max(0, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(0, Math.min(top, innerHeight - tip.offsetHeight - 8))}px`;
}

function saver(name, picture) {
  // a button that saves the <svg> that picture() returns
  const button = make("button", "save as SVG", {type: "button", className: "save", ariaLabel: `save as SVG: ${name}`});
  button.onclick = () => {
    const copy = picture().cloneNode(true);
    copy.querySelectorAll(".spot").forEach(ring => ring.remove());
    // The caption stays behind.
    copy.removeAttribute("aria-labelledby");
    const file = new Blob([new XMLSerializer().serializeToString(copy)], {type: "image/svg+xml"});
    save(file, `${name}.svg`);
  };
  return button;
}

function save(file, name) {
  const link = make("a", "", {href: URL.createObjectURL(file), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// "1.101 ± 0.005", "241,664", "[-0.10, +0.52]" and "<0.001" sort by their first number.
function value(cell) {
  const text = cell.textContent.trim(),
    number = text.replace(/,(?=\d)/g, "").match(/^[[<]?([+-]?(\d+\.?\d*(e[+-]?\d+)?|inf))/);
  return {text, number: number ? Number(number[1].replace("inf", "Infinity")) : NaN};
}

function compare(a, b) {
  if (isNaN(a.number) !== isNaN(b.number)) return isNaN(a.number) ? 1 : -1;
  return isNaN(a.number) ? a.text.localeCompare(b.text, "en", {numeric: true}) : a.number - b.number;
}

function sortable(table) {
  const body = table.tBodies[0],
    original = [...body.rows],
    headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    if (heading.classList.contains("bar")) return;
    const button = make("button", heading.textContent, {type: "button"});
    heading.replaceChildren(button);
    button.onclick = () => {
      const next = {ascending: "descending", descending: "none"}[heading.ariaSort] ?? "ascending";
      headings.forEach(other => other.removeAttribute("aria-sort"));
      const rows = original.map(row => [row, value(row.cells[column])]);
      // What has no number stays at the end, whichever way the others go.
      const turn = (a, b) => (isNaN(a.number) || isNaN(b.number) ? compare(a, b) : -compare(a, b));
      if (next !== "none") {
        rows.sort(([, a], [, b]) => (next === "descending" ? turn(a, b) : compare(a, b)));
        heading.ariaSort = next;
      }
      body.append(...rows.map(([row]) => row));
    };
  });
}

function pointed(figure, svg, spots) {
  // says what stands next to the pointer
  const ring = shape("circle", {class: "spot", r: 5});
  svg.onpointermove = svg.onpointerdown = event => {
    const matrix = svg.getScreenCTM(),
      at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    let best,
      distance = 18 ** 2;
    for (const spot of spots) {
      const away = (spot[0] - at.x) ** 2 + (spot[1] - at.y) ** 2;
      if (away < distance) [best, distance] = [spot, away];
    }
    if (!best) return leave();
    ring.setAttribute("cx", best[0]);
    ring.setAttribute("cy", best[1]);
    svg.append(ring);
    const place = new DOMPoint(best[0], best[1]).matrixTransform(matrix);
    say(best[2], place.x + 12, place.y + 12);
  };
  const leave = (svg.onpointerleave = () => {
    ring.remove();
    tip.hidden = true;
  });
}
