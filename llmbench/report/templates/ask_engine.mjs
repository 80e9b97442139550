// DuckDB in the browser, over the tables of the site. `make duckdb-wasm` bundles this file with DuckDB-WASM and Arrow;
// nothing is fetched but the three files beside it.
import * as duckdb from "@duckdb/duckdb-wasm";

const LOCKED = ["autoload_known_extensions", "autoinstall_known_extensions", "enable_external_access"];

const plain = (value) => {
  if (value === null || value === undefined) return null;
  if (typeof value === "bigint") return Number(value);
  if (value instanceof Date) return value.toISOString().replace("T", " ").replace("Z", "");
  return typeof value === "object" ? JSON.stringify(value, (_, v) => (typeof v === "bigint" ? Number(v) : v)) : value;
};

// A function that answers a query with {columns, rows}; it throws what DuckDB says.
export async function open(base) {
  const db = new duckdb.AsyncDuckDB(new duckdb.VoidLogger(), new Worker(new URL("duckdb-worker.js", base)));
  await db.instantiate(new URL("duckdb.wasm", base).href);
  const answer = await fetch(new URL("store.duckdb", base));
  if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
  await db.registerFileBuffer("store.duckdb", new Uint8Array(await answer.arrayBuffer()));
  const casts = { castBigIntToDouble: true, castDecimalToDouble: true, castTimestampToDate: true };
  await db.open({ path: "store.duckdb", accessMode: duckdb.DuckDBAccessMode.READ_ONLY, query: casts });
  const connection = await db.connect();
  for (const name of LOCKED) await connection.query(`SET ${name} = false`);
  await connection.query("SET lock_configuration = true");
  return async (sql) => {
    const table = await connection.query(sql);
    const columns = table.schema.fields.map((field) => field.name);
    const vectors = columns.map((_, i) => table.getChildAt(i));
    const rows = Array.from({ length: table.numRows }, (_, row) => vectors.map((vector) => plain(vector.get(row))));
    return { columns, rows };
  };
}
