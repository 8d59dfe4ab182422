"use strict";

// Inflates plotly, then draws every figure whose data lie beside its place. Numbers and tables need none of this.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};
const PRINTED_WIDTH = 680;
const NARROW = 700;
const ABOVE = { "legend.orientation": "h", "legend.x": 0, "legend.y": 1.02, "legend.xanchor": "left", "legend.yanchor": "bottom" };
const ROOM = 40;  // Pixels that every figure has for its legend.
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const plots = [...document.querySelectorAll(".plot")];

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const theme = () => root.dataset.theme ?? (prefersDark.matches ? "dark" : "light");

async function inflate(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function run(source) {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
}

function draw(templates, layout = {}, name = theme()) {
  for (const place of plots) {
    const figure = read(place.dataset.figure);
    place.style.height = `${figure.layout.height}px`;
    Plotly.react(place, figure.data, { ...figure.layout, template: templates[name], ...layout }, CONFIG);
    if (innerWidth <= NARROW && !("width" in layout) && place._fullLayout.showlegend) fitLegend(place, figure.layout.height);
  }
}

// On a telephone, a legend stands above its bars, which otherwise get no width, and makes its figure taller.
async function fitLegend(place, height) {
  await Plotly.relayout(place, ABOVE);
  const fitted = height + Math.max(0, place._fullLayout.legend._height - ROOM);
  place.style.height = `${fitted}px`;
  await Plotly.relayout(place, { height: fitted });
}

function offerChoices(templates) {
  for (const select of document.querySelectorAll("select[data-place]")) {
    select.addEventListener("change", () => {
      document.getElementById(select.dataset.place).dataset.figure = select.value;
      draw(templates);
    });
  }
}

async function start() {
  if (plots.length > 0) run(await inflate("plotly"));
  const templates = read("templates");
  const toggle = document.getElementById("theme");
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    draw(templates);
  });
  prefersDark.addEventListener("change", () => draw(templates));
  addEventListener("beforeprint", () => draw(templates, { width: PRINTED_WIDTH }, "light"));
  addEventListener("afterprint", () => draw(templates));
  offerChoices(templates);
  draw(templates);
  root.dataset.drawn = "yes";
}

start();
