// The data: base64 of gzip of tables behind each other, described by the recordings' "arrays".
async function readData() {
  const recordings = JSON.parse(document.getElementById("meta").textContent);
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack gzip (any from 2023 on can)");
  const text = atob(document.getElementById("data").textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = await new Response(stream).arrayBuffer();
  const types = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };
  for (const r of recordings) {
    r.t = {};
    for (const [name, a] of Object.entries(r.arrays)) r.t[name] = new types[a.type](data, a.offset, a.length);
  }
  return recordings;
}
