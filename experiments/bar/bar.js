// The entries at the bar: a table that is sorted, and a figure that says its values.
document.querySelectorAll("table").forEach(sortable);
document.querySelectorAll("[data-picture]").forEach(figure => {
  const svg = figure.querySelector("svg");
  figure.append(saver(figure.dataset.picture, () => svg));
  pointed(figure, svg, data.spots[figure.dataset.picture]);
});
