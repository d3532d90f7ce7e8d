// Chart draws shares or rates over time: areas on top of each other, or one line. spec: bins, series of {name, colour,
// value(bin)} (NaN: nothing there), stacked, top (of the axis; 0: the greatest value), axis, form(v), timeAxis ("": none),
// binTicks, ticks, marks (ticks), shade(bin), words(bin).
class Chart extends Surface {
  show(spec) {
    this.spec = spec;
    this.draw();
  }
  draw() {
    const s = this.spec, g = this.begin(s.stacked ? 130 : 74, 8, s.timeAxis);
    let top = s.top || 0;
    if (!top) for (const q of s.series) for (let b = 0; b < s.bins; b++) { const v = q.value(b); if (v > top) top = v; }
    top = top || 1;
    const snap = x => Math.floor(x * this.dpr) / this.dpr; // no seams between neighbours
    const px = b => this.x + Math.min(s.ticks, b * s.binTicks) / s.ticks * this.w, py = v => this.y + this.h * (1 - v / top);
    if (s.shade) {
      g.fillStyle = css("--line");
      g.globalAlpha = 0.6;
      for (let b = 0; b < s.bins; b++) if (s.shade(b)) g.fillRect(snap(px(b)), this.y, snap(px(b + 1)) - snap(px(b)), this.h);
      g.globalAlpha = 1;
    }
    const base = new Float64Array(s.bins);
    for (const q of s.series) {
      g.fillStyle = g.strokeStyle = css(q.colour);
      g.lineWidth = 1.6;
      g.beginPath();
      let pen = false;
      for (let b = 0; b < s.bins; b++) {
        const v = q.value(b), x0 = px(b), x1 = px(b + 1);
        if (Number.isNaN(v)) {
          pen = false;
        } else if (s.stacked) {
          g.rect(snap(x0), py(base[b] + v), snap(x1) - snap(x0), py(base[b]) - py(base[b] + v));
          base[b] += v;
        } else {
          const x = (x0 + x1) / 2;
          if (pen) g.lineTo(x, py(v)); else g.moveTo(x - 0.5, py(v)), g.lineTo(x, py(v));
          pen = true;
        }
      }
      if (s.stacked) g.fill(); else g.stroke();
    }
    g.fillStyle = g.strokeStyle = css("--soft");
    g.lineWidth = 1;
    g.strokeRect(this.x - 0.5, this.y - 0.5, this.w + 1, this.h + 1);
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const v of ticks(top, s.stacked ? 5 : 3)) {
      g.fillRect(this.x - 4, Math.round(py(v)) - 0.5, 4, 1);
      g.fillText(s.form(v), this.x - 6, py(v));
    }
    g.globalAlpha = 0.7;
    for (const m of s.marks) g.fillRect(Math.round(this.x + m / s.ticks * this.w) - 0.5, this.y, 1, this.h);
    g.globalAlpha = 1;
    this.beside(g, s.axis);
    if (s.timeAxis) this.below(g, s.timeAxis, s.ticks, 1, "");
  }
  at(x, y) {
    const s = this.spec;
    if (!s || x < this.x || x >= this.x + this.w || y < this.y || y >= this.y + this.h) return null;
    return { bin: Math.min(s.bins - 1, Math.floor((x - this.x) / this.w * s.ticks / s.binTicks)) };
  }
  hover(c, clientX, clientY) {
    if (!c) return this.leave();
    const s = this.spec, middle = Math.min(s.ticks, (c.bin + 0.5) * s.binTicks);
    Object.assign(this.cursor.style, { left: this.x + middle / s.ticks * this.w + "px", top: this.y + "px", width: "0", height: this.h + "px" });
    this.cursor.className = "cursor bar";
    this.cursor.hidden = false;
    tip(s.words(c.bin), clientX, clientY);
  }
}
