// Numbers as text, and numbers as colours.
const MiB = 1 << 20;
const share = x => Number.isNaN(x) ? "none" : (100 * x).toFixed(1) + " %";
const whole = x => Math.round(x).toString().replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
const mib = x => (x >= 100 * MiB ? whole(x / MiB) : (x / MiB).toFixed(x >= MiB ? 1 : 3)) + " MiB";
const short = x => x >= 1e6 ? +(x / 1e6).toPrecision(3) + "M" : x >= 1e4 ? +(x / 1e3).toPrecision(3) + "k" : x === Math.round(x) ? String(x) : x.toPrecision(3);

// css reads a colour or font of the style sheet, so that both themes have one place.
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = () => document.documentElement.dataset.theme === "dark";

// The ramps go from nearly the panel's own colour to the strongest contrast with it, and grow in lightness only one way.
const stops = {
  light: [[232, 237, 243], [176, 205, 229], [103, 160, 207], [38, 103, 164], [6, 38, 84]],
  dark: [[36, 44, 54], [32, 74, 122], [46, 122, 178], [118, 184, 224], [238, 248, 255]],
};

// ramp returns 256 colours as the 32-bit pixels of an ImageData (little-endian ABGR) and as a CSS gradient.
function ramp() {
  const s = dark() ? stops.dark : stops.light, pixels = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const x = i / 255 * (s.length - 1), j = Math.min(s.length - 2, Math.floor(x)), f = x - j;
    const c = s[j].map((v, k) => Math.round(v + f * (s[j + 1][k] - v)));
    pixels[i] = (255 << 24 | c[2] << 16 | c[1] << 8 | c[0]) >>> 0;
  }
  return { pixels, gradient: "linear-gradient(to right," + s.map(c => `rgb(${c})`).join(",") + ")" };
}

// ticks are at most n round numbers of 0..top.
function ticks(top, n) {
  if (!(top > 0)) return [0];
  const rough = top / n, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => top / s <= n);
  const out = [];
  for (let v = 0; v <= top * 1.0001; v += step) out.push(+v.toPrecision(12));
  return out;
}
