"use strict";
// Draws what the JSON in #drawing says. All numbers come as texts: nothing is computed here.
const drawing = JSON.parse(document.getElementById("drawing").textContent);
const patterns = document.getElementById("patterns");

function element(parent, name, attributes, text) {
  const made = document.createElement(name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

function shape(parent, name, attributes, text) {
  const made = document.createElementNS(patterns.namespaceURI, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

// ---- the mesh: each device's block of the chosen layer's tensors

const mesh = document.getElementById("mesh");
const chooser = mesh.querySelector("select");

function drawTensor(svg, tensor, device, left, size) {
  const layout = drawing.layouts[tensor.layout];
  const [top, bottom, start, end] = layout.blocks[device];
  const style = "Wb".includes(tensor.role[0]) ? "parameters" : "activations";
  // wide tensors are drawn wide, but each can still be seen
  const ratio = Math.min(1.4, Math.max(0.7, Math.sqrt(layout.columns / layout.rows)));
  const width = size * Math.min(1, ratio), height = size * Math.min(1, 1 / ratio);
  const x = left + (size - width) / 2, y = 1 + (size - height) / 2;
  const block = {
    x: x + start * width, y: y + top * height,
    width: Math.max(1.5, (end - start) * width), height: Math.max(1.5, (bottom - top) * height),
  };
  shape(svg, "rect", {...block, class: style});
  if (layout.summands > 1) shape(svg, "rect", {...block, class: "summand"});
  shape(svg, "rect", {x, y, width, height, class: "whole"});
  shape(svg, "text", {x: left + size / 2, y: size + 14, "text-anchor": "middle"}, tensor.role);
}

function drawLayer(part, layer) {
  const hosts = mesh.querySelector(".hosts"), told = mesh.querySelector("output");
  hosts.replaceChildren();
  const devices = Math.min(part.nodes * part.gpus, drawing.most_devices);
  const size = devices > 16 ? 26 : 40, wide = layer.tensors.length * (size + 8) - 4;
  const drawn = [];
  const copies = (device) => drawn.forEach((other, number) => other.classList.toggle(
    "copy", device !== null && layer.tensors.some(({layout}) => {
      const {blocks, copies} = drawing.layouts[layout];
      return copies > 1 && blocks[number][5] === blocks[device][5];
    })));
  for (let device = 0, host; device < devices; device++) {
    const node = Math.floor(device / part.gpus), gpu = device % part.gpus;
    if (gpu === 0) {
      const box = element(hosts, "div", {class: "host"});
      element(box, "small", {}, `host ${part.first_node + node}`);
      host = element(box, "div", {class: "devices"});
    }
    const name = `device ${part.first_gpu + gpu}`;
    const box = element(host, "div", {class: "device", tabindex: 0});
    drawn.push(box);
    element(box, "small", {}, name);
    const svg = shape(box, "svg", {width: wide, height: size + 18});
    layer.tensors.forEach((tensor, n) => drawTensor(svg, tensor, device, 1 + n * (size + 8), size));
    const held = layer.tensors.map((t) => t.role + drawing.layouts[t.layout].blocks[device][4]);
    const text = `host ${part.first_node + node}, ${name} holds ${held.join(", ")}`;
    box.setAttribute("aria-label", text);
    for (const event of ["pointerenter", "focus"]) {
      box.addEventListener(event, () => { told.textContent = text; copies(device); });
    }
    for (const event of ["pointerleave", "blur"]) {
      box.addEventListener(event, () => { told.textContent = told.dataset.hint; copies(null); });
    }
  }
  const more = part.nodes * part.gpus - devices;
  if (more > 0) element(hosts, "p", {class: "note"}, `and ${more} more devices`);
  told.textContent = told.dataset.hint;
  describe(layer, part.nodes * part.gpus);
}

function describe(layer, devices) {
  const list = mesh.querySelector("dl");
  list.replaceChildren();
  for (const tensor of layer.tensors) {
    const {copies, summands} = drawing.layouts[tensor.layout];
    const words = [tensor.name, tensor.shape, tensor.placement];
    if (copies === devices && copies > 1) words.push("each device holds all of it");
    else if (copies > 1) words.push(`${copies} devices hold the same block`);
    if (summands > 1) words.push(`the blocks of ${summands} devices add up to it`);
    element(list, "dt", {}, tensor.role);
    element(list, "dd", {}, words.join(", "));
  }
}

function choose(value, scroll) {
  const [partNumber, layerNumber] = value.split(" ").map(Number);
  const part = drawing.parts[partNumber];
  if (!part || !part.layers[layerNumber]) return;
  chooser.value = value;
  drawLayer(part, part.layers[layerNumber]);
  const name = part.layers[layerNumber].name;
  for (const row of document.querySelectorAll(".layer")) {
    const members = [...row.querySelectorAll("button[data-layer]")];
    row.classList.toggle("chosen", members.some((b) =>
      b.dataset.layer === name && row.dataset.part === part.title));
  }
  if (scroll) mesh.scrollIntoView({block: "nearest", behavior: "smooth"});
}

drawing.parts.forEach((part, n) => {
  const group = part.title ? element(chooser, "optgroup", {label: part.title}) : chooser;
  part.layers.forEach((layer, m) => element(group, "option", {value: `${n} ${m}`}, layer.name));
});
chooser.addEventListener("change", () => choose(chooser.value, false));
function chooseOf(button, scroll) {
  const title = button.closest(".layer").dataset.part;
  const n = drawing.parts.findIndex((part) => part.title === title);
  const m = drawing.parts[n].layers.findIndex((layer) => layer.name === button.dataset.layer);
  choose(`${n} ${m}`, scroll);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-layer]");
  if (button) chooseOf(button, true);
});
mesh.hidden = false;
// first the layer that takes most time
const slowest = [...document.querySelectorAll(".layer")].reduce((best, row) =>
  Number(row.dataset.time) > Number(best.dataset.time) ? row : best);
chooseOf(slowest.querySelector("button[data-layer]"), false);

// ---- layers: sorted and filtered

for (const controls of document.querySelectorAll(".controls")) {
  const rows = [...controls.parentElement.querySelectorAll(".layer")];
  const [sort, filter] = [controls.querySelector("select"), controls.querySelector("input")];
  const arrange = () => {
    const key = sort.value;
    const value = (row) => key === "name" ? row.dataset.name : Number(row.dataset[key]);
    const sign = key === "name" || key === "order" ? 1 : -1;
    const last = rows[0].parentElement;
    [...rows].sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0))
      .forEach((row) => last.append(row));
    const wanted = filter.value.toLowerCase();
    rows.forEach((row) => { row.hidden = !row.dataset.name.toLowerCase().includes(wanted); });
  };
  sort.addEventListener("change", arrange);
  filter.addEventListener("input", arrange);
  controls.hidden = false;
}

// ---- memory over the step

function drawCourse(figure, course) {
  const wide = figure.clientWidth - 30, high = 200, left = 66, right = 8, top = 8, bottom = 26;
  const count = course.moments.length;
  const x = (n) => left + (wide - left - right) * n / count;
  const y = (bytes) => top + (high - top - bottom) * (1 - bytes / course.top_bytes);
  const svg = figure.querySelector("svg");
  svg.replaceChildren();
  for (const [key, value] of [["width", wide], ["height", high]]) svg.setAttribute(key, value);
  for (const [bytes, text] of course.ticks) {
    shape(svg, "line", {x1: left, x2: wide - right, y1: y(bytes), y2: y(bytes), class: "axis"});
    shape(svg, "text", {x: left - 6, y: y(bytes) + 4, "text-anchor": "end", class: "tick"}, text);
  }
  const below = new Array(count).fill(0);
  course.causes.forEach((cause, number) => {
    const base = [...below];
    course.bytes[number].forEach((bytes, n) => { below[n] += bytes; });
    // each moment is a step of its own
    const upper = below.map((b, n) => `${x(n)},${y(b)} ${x(n + 1)},${y(b)}`);
    const lower = base.map((b, n) => `${x(n + 1)},${y(b)} ${x(n)},${y(b)}`).reverse();
    const drawn = shape(svg, "polygon", {
      points: [...upper, ...lower].join(" "), class: `held ${cause.replaceAll(" ", "-")}`,
    });
    shape(drawn, "title", {}, cause);
  });
  if (course.limit_bytes !== null && course.limit_bytes <= course.top_bytes) {
    const at = y(course.limit_bytes);
    shape(svg, "line", {x1: left, x2: wide - right, y1: at, y2: at, class: "limit"});
  }
  const turn = x(course.turn);
  shape(svg, "line", {x1: turn, x2: turn, y1: top, y2: high - bottom, class: "axis"});
  shape(svg, "text", {x: (left + turn) / 2, y: high - 8, "text-anchor": "middle"}, "forward");
  shape(svg, "text", {x: (turn + wide) / 2, y: high - 8, "text-anchor": "middle"}, "backward");
  const cursor = shape(svg, "line", {y1: top, y2: high - bottom, class: "cursor"});
  const told = figure.querySelector("output");
  let now = course.fullest;
  const show = (n) => {
    now = Math.min(count - 1, Math.max(0, n));
    for (const key of ["x1", "x2"]) cursor.setAttribute(key, x(now + 0.5));
    told.textContent = `${course.texts[now]} at ${course.moments[now]}`;
  };
  svg.onpointermove = (event) => show(Math.floor(
    (event.clientX - svg.getBoundingClientRect().left - left) / (wide - left - right) * count));
  svg.onkeydown = (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (step) { show(now + step); event.preventDefault(); }
  };
  show(now);
}

// ---- the timeline of a pipeline

function drawTimeline(figure, timeline) {
  const wide = Math.max(560, figure.clientWidth - 30), left = 62, row = 44, high = timeline.stages * row + 30;
  const x = (seconds) => left + (wide - left - 10) * seconds / timeline.seconds;
  const svg = figure.querySelector("svg");
  svg.replaceChildren();
  for (const [key, value] of [["width", wide], ["height", high]]) svg.setAttribute(key, value);
  for (const [seconds, text] of timeline.ticks) {
    const at = x(seconds);
    shape(svg, "line", {x1: at, x2: at, y1: 0, y2: high - 24, class: "axis"});
    const place = {x: at, y: high - 8, "text-anchor": seconds ? "middle" : "start", class: "tick"};
    shape(svg, "text", place, text);
  }
  for (let stage = 0; stage < timeline.stages; stage++) {
    shape(svg, "text", {x: 0, y: stage * row + 18}, `stage ${stage}`);
  }
  const told = figure.querySelector("output");
  for (const [stage, travels, kind, start, end, number, text] of timeline.bars) {
    const place = {x: x(start), width: Math.max(0.75, x(end) - x(start))};
    const drawn = shape(svg, "rect", {
      ...place, y: stage * row + (travels ? 29 : 3), height: travels ? 10 : 24, class: kind,
      stroke: "var(--back)", "stroke-width": place.width > 4 ? 0.75 : 0,
    });
    shape(drawn, "title", {}, `stage ${stage}: ${text}`);
    drawn.addEventListener("pointerenter", () => { told.textContent = `stage ${stage}: ${text}`; });
    if (place.width > 14 && !travels) {
      const middle = place.x + place.width / 2;
      const style = kind === "W" ? "on pale" : "on";
      shape(svg, "text", {x: middle, y: stage * row + 19, "text-anchor": "middle", class: style},
        number);
    }
  }
}

function drawAll() {
  for (const figure of document.querySelectorAll("figure.course")) {
    figure.hidden = false;
    drawCourse(figure, drawing.parts.find((p) => p.title === figure.dataset.part).course);
  }
  const figure = document.querySelector("figure.timeline");
  if (figure && drawing.timeline.bars) {
    figure.hidden = false;
    drawTimeline(figure, drawing.timeline);
  }
}
drawAll();
addEventListener("resize", drawAll);
