"use strict";
// What the scripts of all pages have in common: elements, the line beside the pointer, saved pictures.
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
