// The address examples of layouts.json in JavaScript, by the formula of Plane in chunkkv.proto alone.
//   node addresses.js layouts.json
const fs = require('fs')

const at = (axis, i) => Math.floor(i / (axis.tile || 1)) * axis.outer + (i % (axis.tile || 1)) * axis.inner

let checked = 0
for (const row of JSON.parse(fs.readFileSync(process.argv[2]))) {
  for (const e of row.examples) {
    const p = row.planes[e.plane]
    const offset = p.offset + (e.layer - p.layer_first) * p.layer_stride + e.block * p.block_stride + e.head * p.head_stride +
      at(p.token, e.token) + at(p.dim, e.dim)
    // below 2^53 in all examples, so doubles are exact
    if (!Number.isSafeInteger(offset) || offset !== e.offset) {
      console.error(`${row.name}: plane ${e.plane}: ${offset} and not ${e.offset}`)
      process.exit(1)
    }
    checked++
  }
}
console.log(`${checked} addresses`)
