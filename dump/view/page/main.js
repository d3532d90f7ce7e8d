// The page: which table goes where, in which words.
const byId = id => document.getElementById(id);
let recordings, r, chosen = 0, scope = -1; // chosen: place of the layer looked into; scope: of the layer over time, -1 all
let expertsMap, timeMap, partMap, stackChart, bytesChart, reuseChart;

// tip shows lines of text beside the pointer, or nothing.
function tip(lines, x, y) {
  const t = byId("tip");
  t.hidden = !lines;
  if (!lines) return;
  t.textContent = lines.filter(l => l).join("\n");
  const box = t.getBoundingClientRect();
  t.style.left = Math.max(4, x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16) + "px";
  t.style.top = Math.max(4, Math.min(innerHeight - box.height - 4, y + 14)) + "px";
}

const ratio = (a, b) => b > 0 ? a / b : NaN;
const span = (bin, width) => {
  const from = bin * width, to = Math.min(r.ticks, from + width) - 1;
  return from === to ? "token " + whole(from) : `tokens ${whole(from)} to ${whole(to)}`;
};
const expertName = c => {
  const from = c * r.perCell, to = Math.min(r.nExpert, from + r.perCell) - 1;
  return from === to ? "expert " + from : `experts ${from} to ${to}`;
};
const times = n => n === 1 ? "once" : whole(n) + " times";

// The metrics of the three heat maps. trace: needs residency. Values of the first take (layer, expert), of the others bins.
const expertMetrics = [
  { name: "picks", value: i => r.t.picks[i], form: short, legend: "times picked", holes: "" },
  { name: "mean weight", value: i => ratio(r.t.weight[i], r.t.known[i]), form: v => v.toPrecision(3), legend: "mean router weight", holes: "never picked" },
  { name: "not in memory", trace: true, value: i => ratio(r.t.picks[i] - r.t.hit[i] - r.t.prefetch[i], r.t.picks[i]), form: share, legend: "share of picks not in memory", holes: "never picked", top: 1 },
  { name: "dropped", trace: true, value: i => ratio(r.t.dropped[i], r.t.picks[i]), form: share, legend: "share of picks dropped", holes: "never picked" },
  { name: "MiB read", trace: true, value: i => r.t.bytes[i], form: mib, legend: "read", holes: "" },
];
const timeMetrics = [
  { name: "not in memory", trace: true, value: i => ratio(r.t.slots[i] - r.t.tHit[i] - r.t.tPrefetch[i], r.t.slots[i]), form: share, legend: "share of routed experts not in memory", top: 1 },
  { name: "dropped", trace: true, value: i => ratio(r.t.tDropped[i], r.t.slots[i]), form: share, legend: "share of routed experts dropped" },
  { name: "weight dropped", trace: true, value: i => ratio(r.t.tLost[i], r.t.tWeight[i]), form: share, legend: "share of the router's weight dropped" },
  { name: "MiB read per token", trace: true, value: i => ratio(r.t.tBytes[i], r.t.tokens[i]), form: mib, legend: "read per token" },
  { name: "reuse", value: i => ratio(r.t.reused[i], r.t.compared[i]), form: share, legend: "share of experts that the token before had too", top: 1 },
];
const partMetrics = [
  { name: "picks", value: i => r.t.pPicks[i], form: short, legend: "times picked", holes: "" },
  { name: "not in memory", trace: true, value: i => ratio(r.t.pMiss[i], r.t.pPicks[i]), form: share, legend: "share of picks not in memory", holes: "not picked", top: 1 },
  { name: "dropped", trace: true, value: i => ratio(r.t.pDropped[i], r.t.pPicks[i]), form: share, legend: "share of picks dropped", holes: "not picked", top: 1 },
];

// fill puts options into a select and keeps the choice where it still exists.
function fill(select, names) {
  const old = select.value;
  select.replaceChildren(...names.map(n => new Option(n, n)));
  if (names.includes(old)) select.value = old;
}
const metricOf = (id, list) => list.find(m => m.name === byId(id).value);

function showExperts() {
  const m = metricOf("expertMetric", expertMetrics), n = r.expertCells, t = r.t, even = r.perCell / r.nExpert;
  const counts = m.name === "picks" || m.name === "MiB read";
  byId("expertLog").parentElement.style.visibility = counts ? "" : "hidden";
  expertsMap.show({
    rows: r.layers.length, cols: n, value: (l, e) => m.value(l * n + e), log: counts && byId("expertLog").checked, top: m.top, form: m.form, legend: m.legend,
    holes: m.holes, rowName: l => r.layers[l].layer, rowAxis: "layer", colAxis: "expert id", colStep: r.perCell, colUnit: "id", chosen, pick: l => choose(l),
    words: (l, e) => {
      const i = l * n + e, picks = t.picks[i], slots = r.layers[l].slots;
      const lines = [`layer ${r.layers[l].layer}, ${expertName(e)}`, picks === 0 ? "never picked" : `picked ${times(picks)}: ${share(picks / slots)} of the layer's slots (even: ${share(even)})`];
      if (picks > 0 && t.known[i] > 0) lines.push("mean weight " + (t.weight[i] / t.known[i]).toFixed(4));
      if (picks > 0 && r.trace) {
        const resident = t.hit[i] + t.prefetch[i];
        lines.push(`in memory ${share(resident / picks)}, not in memory ${share(1 - resident / picks)}`, `dropped ${times(t.dropped[i])} (${share(t.dropped[i] / picks)})`, "read " + mib(t.bytes[i]));
      }
      return lines;
    },
  });
}

// over adds a table of layers x time up over the layers in scope, or of one place.
function over(name, place = scope) {
  const t = r.t[name], n = r.timeBins;
  if (place >= 0) return b => t[place * n + b];
  const sum = new Float64Array(n);
  for (let l = 0; l < r.layers.length; l++) for (let b = 0; b < n; b++) sum[b] += t[l * n + b];
  return b => sum[b];
}

function showTime() {
  const slots = over("slots"), tokens = over("tokens"), reused = over("reused"), compared = over("compared");
  const rows = scope >= 0 ? 1 : r.layers.length;
  const common = { bins: r.timeBins, binTicks: r.timeTicks, ticks: r.ticks, marks: r.marks, timeAxis: "" };
  const where = b => span(b, r.timeTicks) + (scope >= 0 ? `, layer ${r.layers[scope].layer}` : ", all layers");
  byId("stackPlot").hidden = byId("bytesPlot").hidden = !r.trace;
  const keys = byId("stackKeys");
  keys.replaceChildren();
  if (r.trace) {
    const hit = over("tHit"), pre = over("tPrefetch"), dropped = over("tDropped"), bytes = over("tBytes"), lost = over("tLost"), weight = over("tWeight");
    const prefill = r.t.prefill, all = over("tokens", -1);
    const series = [
      { name: "in memory", colour: "--hit", value: b => ratio(hit(b), slots(b)) },
      { name: "in memory by prefetch", colour: "--prefetch", value: b => ratio(pre(b), slots(b)) },
      { name: "not in memory: read", colour: "--read", value: b => ratio(slots(b) - hit(b) - pre(b) - dropped(b), slots(b)) },
      { name: "not in memory: dropped", colour: "--dropped", value: b => ratio(dropped(b), slots(b)) },
    ];
    const shade = b => prefill[b] * 2 > all(b);
    stackChart.show({ ...common, series, stacked: true, top: 1, axis: "share of slots", form: v => 100 * v + " %", words: b => [where(b), shade(b) ? "prompt" : "decode",
      ...series.map(q => `${q.name} ${share(q.value(b))}`), `weight dropped ${share(ratio(lost(b), weight(b)))}`] });
    const perToken = b => ratio(bytes(b) * rows, tokens(b));
    bytesChart.show({ ...common, shade, series: [{ colour: "--read", value: b => perToken(b) / MiB }], axis: "MiB / token", form: short, words: b => [where(b), shade(b) ? "prompt" : "decode", `read ${mib(perToken(b))} per token`] });
    for (const q of series) keys.append(key(q.colour, q.name));
    keys.append(key("--line", "prompt"));
  }
  const reuse = b => ratio(reused(b), compared(b));
  reuseChart.show({ ...common, timeAxis: timeAxis(), series: [{ colour: "--reuse", value: reuse }], top: 1, axis: "reuse", form: v => 100 * v + " %",
    words: b => [where(b), `${share(reuse(b))} of the experts were the token before's too`] });
}

const timeAxis = () => "token of the recording" + (r.marks.length ? " (upright lines: a turn begins)" : "");

function key(colour, name) {
  const s = document.createElement("span"), b = document.createElement("b");
  b.style.background = `var(${colour})`;
  s.append(b, name);
  return s;
}

function showLayersOverTime() {
  const m = metricOf("timeMetric", timeMetrics), n = r.timeBins, t = r.t;
  timeMap.show({
    rows: r.layers.length, cols: n, value: (l, b) => m.value(l * n + b), top: m.top, form: m.form, legend: m.legend, holes: "nothing there",
    rowName: l => r.layers[l].layer, rowAxis: "layer", colAxis: timeAxis(), colStep: r.timeTicks, colUnit: "", chosen, pick: l => choose(l),
    words: (l, b) => {
      const i = l * n + b, lines = [`layer ${r.layers[l].layer}, ${span(b, r.timeTicks)}`, `${whole(t.slots[i])} routed experts of ${whole(t.tokens[i])} tokens`];
      if (r.trace) lines.push(`not in memory ${share(ratio(t.slots[i] - t.tHit[i] - t.tPrefetch[i], t.slots[i]))}, dropped ${share(ratio(t.tDropped[i], t.slots[i]))}`,
        `weight dropped ${share(ratio(t.tLost[i], t.tWeight[i]))}`, `read ${mib(t.tBytes[i])}`);
      lines.push(`reuse ${share(ratio(t.reused[i], t.compared[i]))}`);
      return lines;
    },
  });
}

function showPart() {
  const m = metricOf("partMetric", partMetrics), n = r.expertCells, from = chosen * r.partBins * n, t = r.t;
  const at = (e, b) => from + b * n + e;
  byId("partTitle").textContent = `Layer ${r.layers[chosen].layer}: experts over time`;
  partMap.show({
    rows: n, cols: r.partBins, value: (e, b) => m.value(at(e, b)), top: m.top, form: m.form, legend: m.legend, holes: m.holes,
    rowName: e => e * r.perCell, rowAxis: "expert id", colAxis: timeAxis(), colStep: r.partTicks, colUnit: "", chosen: -1,
    words: (e, b) => {
      const i = at(e, b), picks = t.pPicks[i], lines = [`layer ${r.layers[chosen].layer}, ${expertName(e)}, ${span(b, r.partTicks)}`, picks ? `picked ${times(picks)}` : "not picked"];
      if (picks && r.trace) lines.push(`not in memory ${times(t.pMiss[i])}, dropped ${times(t.pDropped[i])}`);
      return lines;
    },
  });
}

function showTable() {
  const bits = Math.log2(r.nExpert);
  const columns = [
    ["layer", l => l.layer], ["tokens", l => whole(l.tokens)], [`experts picked, of ${r.nExpert}`, l => whole(l.distinct), l => l.distinct / r.nExpert],
    [`entropy, bits (even: ${bits.toFixed(2)})`, l => l.entropy.toFixed(3), l => bits > 0 ? l.entropy / bits : 0], ["as if even over", l => l.effective.toFixed(1), l => l.effective / r.nExpert],
    ["reuse", l => l.reuse < 0 ? "none" : share(l.reuse), l => Math.max(0, l.reuse)],
  ];
  if (r.trace) columns.push(["in memory", l => share(l.resident), l => l.resident], ["dropped", l => share(l.dropped), l => l.dropped], ["weight dropped", l => share(l.weight_dropped), l => l.weight_dropped],
    ["read", l => mib(l.bytes_read)]);
  const head = document.createElement("thead"), body = document.createElement("tbody"), line = document.createElement("tr");
  for (const [name] of columns) line.append(Object.assign(document.createElement("th"), { textContent: name, scope: "col" }));
  head.append(line);
  r.layers.forEach((l, i) => {
    const tr = document.createElement("tr");
    tr.className = i === chosen ? "chosen" : "";
    tr.addEventListener("click", () => choose(i));
    for (const [, text, bar] of columns) {
      const td = Object.assign(document.createElement("td"), { textContent: text(l) });
      if (bar) td.className = "bar", td.style.setProperty("--w", 100 * bar(l) + "%");
      tr.append(td);
    }
    body.append(tr);
  });
  byId("layers").replaceChildren(head, body);
  byId("explain").textContent = "entropy: of the layer's pick counts, in bits; \u201cas if even over\u201d is 2 to that power. reuse: share of a token's experts that the token before it had in the same layer and turn."
    + (r.trace ? "\nin memory, dropped, read: as recorded when the expert was routed, before anything was read; shares are of routed slots (token, layer, expert)." : "");
}

// choose looks into a layer.
function choose(place) {
  chosen = place;
  byId("layer").value = place;
  if (scope >= 0) {
    scope = place;
    byId("scope").value = place;
    showTime();
  }
  showExperts();
  showLayersOverTime();
  showPart();
  showTable();
}

function showAll() {
  showExperts();
  showTime();
  showLayersOverTime();
  showPart();
  showTable();
}

function open(i) {
  r = recordings[i];
  chosen = 0, scope = -1;
  byId("title").textContent = (r.model || "unnamed model") + ": " + r.kind + " " + r.name;
  const facts = [r.arch, `${r.layers.length} layers`, `${r.nExpert} experts`, `${whole(r.ticks)} tokens`, `${whole(r.slots)} routed experts`];
  if (r.trace) facts.push(r.turns === 1 ? "1 turn" : r.turns + " turns");
  for (const [k, v] of r.facts || []) facts.push(`${k} ${v}`);
  byId("facts").textContent = facts.filter(f => f).join(" \u00b7 ");
  byId("notes").replaceChildren(...(r.notes || []).map(n => Object.assign(document.createElement("p"), { className: "note", textContent: n })));
  for (const [id, list] of [["expertMetric", expertMetrics], ["timeMetric", timeMetrics], ["partMetric", partMetrics]]) fill(byId(id), list.filter(m => r.trace || !m.trace).map(m => m.name));
  byId("layer").replaceChildren(...r.layers.map((l, i) => new Option(l.layer, i)));
  byId("scope").replaceChildren(new Option("all layers", -1), ...r.layers.map((l, i) => new Option("layer " + l.layer, i)));
  showAll();
}

async function main() {
  const system = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  root.dataset.theme = system.matches ? "dark" : "light";
  recordings = await readData();
  document.querySelector("main").hidden = false;
  expertsMap = new Heat("experts", "expertLegend"), timeMap = new Heat("time", "timeLegend"), partMap = new Heat("part", "partLegend");
  stackChart = new Chart("stack"), bytesChart = new Chart("bytes"), reuseChart = new Chart("reuse");
  byId("recording").replaceChildren(...recordings.map((x, i) => new Option(x.name, i)));
  byId("pickRecording").hidden = recordings.length < 2;
  byId("recording").addEventListener("change", e => open(+e.target.value));
  byId("expertMetric").addEventListener("change", showExperts);
  byId("expertLog").addEventListener("change", showExperts);
  byId("timeMetric").addEventListener("change", showLayersOverTime);
  byId("partMetric").addEventListener("change", showPart);
  byId("layer").addEventListener("change", e => choose(+e.target.value));
  byId("scope").addEventListener("change", e => { scope = +e.target.value; showTime(); });
  byId("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; showAll(); });
  system.addEventListener("change", e => { root.dataset.theme = e.matches ? "dark" : "light"; showAll(); });
  open(0);
  let wide = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== wide) wide = innerWidth, showAll(); });
  root.dataset.ready = "yes";
}

main().catch(e => {
  byId("notes").replaceChildren(Object.assign(document.createElement("p"), { className: "note", textContent: "The page cannot be drawn: " + e.message }));
  document.documentElement.dataset.ready = "failed";
});
