"use strict";
// The document is described in timeline/document.py: every frame is a difference to the one before.
const made = JSON.parse(document.getElementById("data").textContent);
const frames = made.frames, numPages = made.num_pages, KEEP = 128;
const byId = (id) => document.getElementById(id);
const scheme = matchMedia("(prefers-color-scheme: dark)"), EVICTED = [213, 0, 0], ALONE = [122, 122, 130];
const [FREE, CACHED, SHARED, NULL] = scheme.matches
  ? [[13, 17, 23], [68, 80, 95], [226, 228, 233], [72, 66, 54]]
  : [[255, 255, 255], [198, 208, 219], [30, 30, 34], [232, 226, 214]];
scheme.addEventListener("change", () => location.reload());

// -- States: pages by code, the free queue, the rows; kept now and then, added up in between ------------------

const kept = [];
const copy = (s) => ({ codes: s.codes.slice(), queue: s.queue.slice(), rows: s.rows.map((row) => row.slice()) });

function addUp(state, frame) {
  const [, , , pages, [taken, front, back], , rows] = frame;
  for (let k = 0; k < pages.length; k += 2) state.codes[pages[k]] = pages[k + 1];
  if (taken.length || front.length || back.length) {
    const gone = new Set(taken);
    state.queue = front.concat(state.queue.filter((page) => !gone.has(page)), back);
  }
  for (let k = 0; k < rows.length; k += 3) {
    while (state.rows.length <= rows[k]) state.rows.push([]);
    state.rows[rows[k]] = state.rows[rows[k]].slice(0, rows[k + 1]).concat(rows[k + 2]);
  }
}

{
  const state = { codes: new Int32Array(numPages), queue: [], rows: [] };
  frames.forEach((frame, number) => {
    addUp(state, frame);
    if (number % KEEP === 0) kept.push(copy(state));
  });
}

function stateAt(number) {
  const state = copy(kept[Math.floor(number / KEEP)]);
  for (let k = number - (number % KEEP) + 1; k <= number; k++) addUp(state, frames[k]);
  return state;
}

// -- Colours -------------------------------------------------------------------------------------------------

function hue(request) { // a colour for each, none of them the red of evictions
  const turn = 0.06 + 0.86 * ((request * 0.61803398875) % 1), rank = Math.floor(request / 8) % 3;
  const light = [0.5, 0.62, 0.38][rank], chroma = (1 - Math.abs(2 * light - 1)) * 0.7;
  return [0, 8, 4].map((shift) => {
    const at = (shift + turn * 12) % 12;
    return Math.round(255 * (light - (chroma / 2) * Math.max(-1, Math.min(at - 3, 9 - at, 1))));
  });
}

function colour(page, code) {
  const together = made.holders[code >> 1];
  if (together.length > 1) return SHARED;
  if (together.length === 1) return hue(together[0]);
  if (code > 1) return ALONE;
  return code & 1 ? CACHED : page === 0 ? NULL : FREE;
}
const css = (rgb) => `rgb(${rgb.join(",")})`;

// -- Pages over time -----------------------------------------------------------------------------------------

let now = 0, first = 0, count = frames.length;
const MOST_HIGH = 4000, PER_ROW = Math.max(Math.ceil(numPages / MOST_HIGH), 1); // browsers draw no canvas above 65,535
const time = byId("time"), columns = Math.min(1400, Math.max(frames.length, 1));

function drawTime() {
  const wide = Math.min(columns, count), high = Math.ceil(numPages / PER_ROW), context = time.getContext("2d");
  time.width = wide;
  time.height = high;
  time.style.height = `${Math.max(high, Math.min(320, high * 24))}px`;
  const image = context.createImageData(wide, high), data = image.data, state = stateAt(first);
  const evicted = new Uint8Array(numPages);
  let reached = first;
  frames[first][5].forEach((page) => { evicted[page] = 1; });
  for (let x = 0; x < wide; x++) {
    const last = first + Math.max(Math.ceil(((x + 1) * count) / wide) - 1, 0);
    while (reached < last) {
      addUp(state, frames[++reached]);
      frames[reached][5].forEach((page) => { evicted[page] = 1; });
    }
    for (let row = 0; row < high; row++) {
      const [r, g, b] = rowColour(row, state.codes, evicted), at = 4 * (row * wide + x);
      data[at] = r; data[at + 1] = g; data[at + 2] = b; data[at + 3] = 255;
    }
    evicted.fill(0);
  }
  drawTime.image = image;
}

function rowColour(row, codes, evicted) { // of several pages: one that was evicted, or held, or cached, before the others
  let best = row * PER_ROW, rank = -1;
  for (let page = best; page < Math.min((row + 1) * PER_ROW, numPages); page++) {
    if (evicted[page]) return EVICTED;
    const own = codes[page] > 1 ? 2 : codes[page];
    if (own > rank) [best, rank] = [page, own];
  }
  return colour(best, codes[best]);
}

function markNow() {
  const context = time.getContext("2d"), x = Math.floor(((now - first) * time.width) / count);
  context.putImageData(drawTime.image, 0, 0);
  context.fillStyle = frames[now][7] === null ? `rgba(${SHARED.join(",")},.6)` : css(EVICTED);
  context.fillRect(x, 0, 1, time.height);
}

function lookFrom(wanted) {
  const before = [first, count];
  count = Math.max(Math.min(wanted, frames.length), Math.min(20, frames.length));
  first = Math.max(0, Math.min(now - Math.floor(count / 2), frames.length - count));
  if (before[0] !== first || before[1] !== count) drawTime();
}

// -- One operation -------------------------------------------------------------------------------------------

const SIDE = numPages > 20000 ? 4 : 14, MOST_ACROSS = SIDE > 4 ? 100 : 300, DRAWN = Math.min(numPages, 7500 * MOST_ACROSS);

function drawPages(state) {
  const canvas = byId("pages"), room = Math.floor(document.body.clientWidth / SIDE) - 3,
    across = Math.max(Math.min(MOST_ACROSS, DRAWN, Math.max(room, DRAWN / 7500)), 1) | 0, context = canvas.getContext("2d");
  canvas.width = across * SIDE;
  canvas.height = Math.ceil(DRAWN / across) * SIDE;
  const evicted = new Set(frames[now][5]);
  for (let page = 0; page < DRAWN; page++) {
    const x = (page % across) * SIDE, y = Math.floor(page / across) * SIDE, code = state.codes[page];
    context.fillStyle = css(SIDE === 4 && evicted.has(page) ? EVICTED : colour(page, code));
    context.fillRect(x, y, SIDE - 1, SIDE - 1);
    if (SIDE === 4) continue;
    context.strokeStyle = evicted.has(page) ? css(EVICTED) : "#8c959f";
    context.lineWidth = evicted.has(page) ? 3 : 1;
    context.strokeRect(x + 0.5, y + 0.5, SIDE - 2, SIDE - 2);
    if (code > 1 && code & 1) { // held and cached
      context.fillStyle = css(FREE);
      context.fillRect(x + SIDE / 2 - 2, y + SIDE / 2 - 2, 3, 3);
    }
  }
  canvas.onmousemove = (event) => {
    const page = Math.floor(event.offsetY / SIDE) * across + Math.floor(event.offsetX / SIDE);
    if (page < DRAWN) byId("pointed").textContent = said(page, state.codes[page]);
  };
}

function said(page, code) {
  const holders = made.holders[code >> 1].map((request) => made.requests[request]);
  const held = holders.length ? `held by ${holders.join(", ")}` : code > 1 ? "held by no request" : page === 0 ? "the null page" : "free";
  return `page ${page}: ${held}${code & 1 ? ", cached" : ""}`;
}

function table(body, lines) {
  body.replaceChildren(...lines.map(([name, text, rgb]) => {
    const line = document.createElement("tr"), head = document.createElement("td"), tail = document.createElement("td");
    if (rgb) {
      const mark = document.createElement("i");
      mark.style.background = css(rgb);
      head.append(mark);
    }
    head.append(name);
    tail.textContent = text;
    line.append(head, tail);
    return line;
  }));
}

function show(number) {
  now = Math.max(0, Math.min(number, frames.length - 1));
  if (now < first || now >= first + count) lookFrom(count);
  const [operation, step, call, , , evicted, , fault] = frames[now], state = stateAt(now);
  markNow();
  byId("place").value = now;
  byId("number").textContent = `picture ${now + 1} of ${frames.length}, operation ${operation}, step ${step}:`;
  byId("call").textContent = call;
  byId("fault").hidden = fault === null;
  byId("fault").textContent = fault === null ? "" : fault;
  const held = new Map();
  let cached = 0, shared = 0, owned = 0;
  state.codes.forEach((code, page) => {
    cached += code & 1;
    const together = made.holders[code >> 1];
    owned += code > 1;
    shared += together.length > 1;
    together.forEach((request) => held.has(request) ? held.get(request).push(page) : held.set(request, [page]));
  });
  byId("counts").textContent =
    `${owned} pages held, ${shared} of them shared; ${numPages - 1 - owned} free; ${cached} cached; ` +
    `${evicted.length} evicted ${made.every > 1 ? "since the picture before" : "by this operation"}${evicted.length ? `: ${evicted.join(" ")}` : ""}`;
  drawPages(state);
  const next = document.createElement("b");
  next.textContent = state.queue.slice(0, 1).join("");
  byId("queue").replaceChildren(next, ` ${state.queue.slice(1).join(" ")}`);
  byId("tables").hidden = state.rows.length === 0;
  table(byId("rows"), state.rows.map((row, place) => [`row ${place}`, row.join(" "), null]).filter(([, text]) => text));
  table(byId("holders"), [...held].sort(([a], [b]) => a - b)
    .map(([request, pages]) => [made.requests[request], pages.join(" "), hue(request)]));
}

function stepFrom(way) {
  const step = frames[now][1];
  let at = now;
  while (at + way >= 0 && at + way < frames.length && frames[at][1] === step) at += way;
  while (way < 0 && at > 0 && frames[at - 1][1] === frames[at][1]) at -= 1;
  show(at);
}

const KEYS = {
  ArrowLeft: (shift) => (shift ? stepFrom(-1) : show(now - 1)),
  ArrowRight: (shift) => (shift ? stepFrom(1) : show(now + 1)),
  PageUp: () => show(now - 100),
  PageDown: () => show(now + 100),
  Home: () => show(0),
  End: () => show(frames.length - 1),
  "+": () => { lookFrom(Math.ceil(count / 2)); show(now); },
  "-": () => { lookFrom(count * 2); show(now); },
  f: () => { const at = frames.findIndex((frame) => frame[7] !== null); if (at >= 0) show(at); },
};

document.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(event.shiftKey);
});
byId("sampled").hidden = made.every === 1 && PER_ROW === 1;
byId("sampled").textContent = [
  made.every > 1 ? `One picture for ${made.every} operations or steps, and the last.` : "",
  PER_ROW > 1 ? `Over time, one line for ${PER_ROW} pages: evicted before held before cached.` : "",
  DRAWN < numPages ? `Below, the first ${DRAWN} pages.` : "",
].join(" ");
byId("place").max = Math.max(frames.length - 1, 0);
byId("place").addEventListener("input", (event) => show(Number(event.target.value)));
time.addEventListener("click", (event) => show(first + Math.floor((event.offsetX / time.clientWidth) * count)));

byId("legend").append(...[
  ["free", FREE], ["free, cached (a dot: held and cached)", CACHED], ["held by one request: a colour for each", hue(0)],
  ["held by several", SHARED], ["held by no request", ALONE], ["evicted here", EVICTED], ["the null page", NULL],
].map(([text, rgb]) => {
  const entry = document.createElement("span"), mark = document.createElement("i");
  mark.style.background = css(rgb);
  entry.append(mark, text);
  return entry;
}));

if (frames.length) {
  const asked = Number(location.hash.slice(1)), fault = frames.findIndex((frame) => frame[7] !== null);
  drawTime();
  show(asked > 0 ? asked - 1 : Math.max(fault, 0));
}
