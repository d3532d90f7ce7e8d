// Reads a Parquet file with hyparquet and prints it as JSON: columns in file order, metadata, rows as arrays. Numbers
// that JSON does not have are printed as strings, 64-bit integers as numbers (they are small here).
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects, parquetSchema } from 'hyparquet'
import { compressors } from 'hyparquet-compressors'

const file = await asyncBufferFromFile(process.argv[2])
const metadata = await parquetMetadataAsync(file)
const columns = parquetSchema(metadata).children.map(c => c.element.name)
const rows = await parquetReadObjects({ file, metadata, compressors })
const plain = v => typeof v === 'bigint' ? Number(v) : typeof v === 'number' && !Number.isFinite(v) ? String(v) : v === undefined ? null : v
const encodings = {}
for (const g of metadata.row_groups)
  for (const c of g.columns) encodings[c.meta_data.path_in_schema.join('.')] = [...new Set([...(encodings[c.meta_data.path_in_schema.join('.')] ?? []), ...c.meta_data.encodings])]
const facts = Object.fromEntries((metadata.key_value_metadata ?? []).map(kv => [kv.key, kv.value]))
process.stdout.write(JSON.stringify({ num_rows: Number(metadata.num_rows), columns, facts, encodings, rows: rows.map(r => columns.map(c => plain(r[c]))) }))
