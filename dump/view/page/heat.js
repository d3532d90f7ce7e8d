// Surface is a canvas with axes: what heat maps and charts have in common.
const left = 62, right = 12, bottom = 36;

class Surface {
  constructor(id) {
    this.canvas = document.getElementById(id);
    this.cursor = document.createElement("div");
    this.cursor.className = "cursor";
    this.cursor.hidden = true;
    this.canvas.parentElement.append(this.cursor);
    this.canvas.addEventListener("pointermove", e => this.hover(this.at(e.offsetX, e.offsetY), e.clientX, e.clientY));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("click", e => { const c = this.at(e.offsetX, e.offsetY); if (c) this.pick(c); });
    this.canvas.addEventListener("keydown", e => this.key(e));
  }
  pick() {}
  key() {}
  leave() {
    this.cursor.hidden = true;
    tip(null);
  }
  // begin sizes the canvas for a plot of this height, with an axis below when it has a name, and returns its context.
  begin(height, top, axis) {
    const dpr = window.devicePixelRatio || 1, low = axis ? bottom : 8;
    this.dpr = dpr;
    this.width = Math.max(200, this.canvas.parentElement.clientWidth);
    this.x = left, this.y = top, this.w = this.width - left - right, this.h = height;
    this.canvas.style.height = top + height + low + "px";
    this.canvas.width = Math.round(this.width * dpr);
    this.canvas.height = Math.round((top + height + low) * dpr);
    // Where the plot is, for whoever drives the page from outside.
    this.canvas.dataset.plot = [this.x, this.y, this.w, this.h].join(" ");
    const g = this.canvas.getContext("2d");
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, this.width, top + height + low);
    g.font = "12px " + getComputedStyle(document.body).fontFamily;
    g.fillStyle = g.strokeStyle = css("--soft");
    return g;
  }
  // below letters the horizontal axis: name, and count things of which the first is number first and each is step.
  below(g, name, count, step, unit) {
    g.textBaseline = "top";
    g.textAlign = "center";
    const top = count * step;
    for (const v of ticks(top, Math.max(2, Math.floor(this.w / 90)))) {
      if (v >= top && unit === "id") continue;
      const px = this.x + (v + (unit === "id" ? step / 2 : 0)) / top * this.w;
      g.fillRect(Math.round(px) - 0.5, this.y + this.h + 1, 1, 4);
      g.fillText(short(v), px, this.y + this.h + 7);
    }
    g.textAlign = "right";
    g.fillText(name, this.x + this.w, this.y + this.h + 22);
  }
  // beside writes the vertical axis' name along it.
  beside(g, name) {
    g.save();
    g.translate(8, this.y + this.h / 2);
    g.rotate(-Math.PI / 2);
    g.textAlign = "center";
    g.textBaseline = "middle";
    g.fillText(name, 0, 0);
    g.restore();
  }
}

// Heat is a heat map. spec: rows, cols, value(row, col) (NaN: nothing there), rowName(row), rowAxis, colAxis, colStep (what
// a column is of the axis' unit), colUnit ("id" for things, "" for a length), words(row, col), chosen (row or -1), pick.
class Heat extends Surface {
  constructor(id, legend) {
    super(id);
    this.legend = document.getElementById(legend);
  }
  show(spec) {
    this.spec = spec;
    this.draw();
  }
  draw() {
    const s = this.spec;
    const each = Math.max(3, Math.min(18, Math.floor(420 / s.rows)));
    const g = this.begin(Math.min(640, s.rows * each), 6, true);
    let top = 0;
    for (let r = 0; r < s.rows; r++) for (let c = 0; c < s.cols; c++) {
      const v = s.value(r, c);
      if (v > top) top = v;
    }
    if (s.top) top = s.top;
    this.top = top;
    this.paint(g, top);
    this.letter(g);
    this.describe(top);
  }
  paint(g, top) {
    const s = this.spec, d = this.dpr, w = Math.round(this.w * d), h = Math.round(this.h * d);
    const image = new ImageData(w, h), out = new Uint32Array(image.data.buffer), colours = ramp().pixels;
    const level = s.log ? v => v <= 0 ? 0 : 1 + Math.round(254 * Math.log1p(v) / Math.log1p(top)) : v => Math.round(255 * v / top);
    // Where cells are wide enough they get a gap; where several share a pixel it shows the greatest.
    const gapX = w / s.cols >= 6 * d ? d : 0, gapY = h / s.rows >= 6 * d ? d : 0;
    for (let py = 0; py < h; py++) {
      const r0 = Math.floor(py * s.rows / h), r1 = Math.max(r0 + 1, Math.floor((py + 1) * s.rows / h));
      if (gapY && (py + gapY) * s.rows / h >= r0 + 1) continue;
      for (let px = 0; px < w; px++) {
        const c0 = Math.floor(px * s.cols / w), c1 = Math.max(c0 + 1, Math.floor((px + 1) * s.cols / w));
        if (gapX && (px + gapX) * s.cols / w >= c0 + 1) continue;
        let v = NaN;
        for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) {
          const x = s.value(r, c);
          if (!(x <= v)) v = Number.isNaN(x) ? v : x;
        }
        if (!Number.isNaN(v)) out[py * w + px] = colours[top > 0 ? Math.min(255, level(v)) : 0];
      }
    }
    g.putImageData(image, Math.round(this.x * d), Math.round(this.y * d));
  }
  letter(g) {
    const s = this.spec, each = this.h / s.rows;
    g.fillStyle = css("--soft");
    g.textAlign = "right";
    g.textBaseline = "middle";
    let last = -Infinity;
    for (let r = 0; r < s.rows; r++) {
      const y = this.y + (r + 0.5) * each;
      if (y - last < 14) continue;
      last = y;
      g.fillText(s.rowName(r), this.x - 6, y);
    }
    if (s.chosen >= 0) {
      g.fillStyle = css("--mark");
      g.fillRect(this.x - 4, this.y + s.chosen * each, 3, Math.max(2, each - 1));
      g.fillStyle = css("--soft");
    }
    this.beside(g, s.rowAxis);
    this.below(g, s.colAxis, s.cols, s.colStep, s.colUnit);
  }
  describe(top) {
    const s = this.spec, bar = document.createElement("i"), empty = document.createElement("b");
    bar.style.background = ramp().gradient;
    this.legend.replaceChildren(s.legend + ": 0", bar, s.form(top) + (s.log ? " (logarithmic)" : ""));
    if (s.holes) this.legend.append(empty, s.holes);
  }
  at(x, y) {
    const s = this.spec;
    if (!s) return null;
    const col = Math.floor((x - this.x) / this.w * s.cols), row = Math.floor((y - this.y) / this.h * s.rows);
    return col >= 0 && col < s.cols && row >= 0 && row < s.rows ? { row, col } : null;
  }
  hover(c, clientX, clientY) {
    if (!c) return this.leave();
    const s = this.spec, w = this.w / s.cols, h = this.h / s.rows;
    Object.assign(this.cursor.style, { left: this.x + c.col * w - 2 + "px", top: this.y + c.row * h - 2 + "px", width: Math.max(3, w) + 4 + "px", height: Math.max(3, h) + 4 + "px" });
    this.cursor.hidden = false;
    this.held = c;
    tip(s.words(c.row, c.col), clientX, clientY);
  }
  pick(c) {
    if (this.spec.pick) this.spec.pick(c.row, c.col);
  }
  key(e) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key], s = this.spec;
    const c = this.held && this.held.row < s.rows && this.held.col < s.cols ? this.held : { row: 0, col: 0 };
    if (e.key === "Enter") return this.pick(c);
    if (e.key === "Escape") return this.leave();
    if (!move) return;
    e.preventDefault();
    const to = this.cursor.hidden ? c : { row: Math.max(0, Math.min(s.rows - 1, c.row + move[0])), col: Math.max(0, Math.min(s.cols - 1, c.col + move[1])) };
    const box = this.canvas.getBoundingClientRect();
    this.hover(to, box.left + this.x + (to.col + 1) * this.w / s.cols, box.top + this.y + (to.row + 1) * this.h / s.rows);
  }
}
