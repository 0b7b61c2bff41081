// node r2-miniflare.mjs WORKER PORT ORIGIN: runs a Cloudflare Worker in workerd, Cloudflare's own runtime, with Miniflare's R2,
// which gets what lies in a bucket of another S3 server that everybody may read. FARM_MINIFLARE: where Miniflare is installed.
import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

const { Miniflare } = createRequire(path.join(process.env.FARM_MINIFLARE, "x"))("miniflare");
const [worker, port, origin] = process.argv.slice(2);

/** An object as it is stored: Node's fetch() would unpack it. */
function read(place) {
  return new Promise((resolve, reject) => {
    const read = (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part)).on("error", reject);
      answer.on("end", () => resolve([answer.headers, new Uint8Array(Buffer.concat(parts)).buffer]));
    };
    http.get(`${origin}${place}`, { headers: { "Accept-Encoding": "identity" } }, read).on("error", reject);
  });
}

const options = {
  modules: true,
  script: fs.readFileSync(worker, "utf8"),
  compatibilityDate: "2025-01-01",
  r2Buckets: ["WHEELS"],
  cf: false,
  host: "127.0.0.1",
};
const server = new Miniflare(options);
const bucket = await server.getR2Bucket("WHEELS");
const [, listing] = await read("?max-keys=1000");
for (const [, key] of Buffer.from(listing).toString().matchAll(/<Key>([^<]*)<\/Key>/g)) {
  const [headers, data] = await read(`/${key.split("/").map(encodeURIComponent).join("/")}`);
  const { "content-type": contentType, "content-encoding": contentEncoding, "cache-control": cacheControl } = headers;
  await bucket.put(key, data, { httpMetadata: { contentType, contentEncoding, cacheControl } });
}
await server.setOptions({ ...options, port: Number(port) }); // answers there only now, with the bucket filled
