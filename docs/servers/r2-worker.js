// A Cloudflare Worker in front of an index in an R2 bucket. wrangler.toml beside it:
//
//   name = "wheels"
//   main = "r2-worker.js"
//   compatibility_date = "2025-01-01"
//   routes = [{ pattern = "wheels.example.org", custom_domain = true }]
//   [[r2_buckets]]
//   binding = "WHEELS"
//   bucket_name = "wheels"
//
// The index lies at the bucket's root. The Worker answers folders with their page, JSON where a client asks for it at least as
// much as for HTML (PEP 691), and sets what the other configurations set. Tested elsewhere than at Cloudflare, as
// docs/index-servers.md says.

// The binding reads the whole bucket. This is what everybody may read, as in public-read.json.
const PUBLIC = /^(?:whl|records|tuf)\/|^catalog.*\.json$|\.html$/;
const LONGEST = 1000; // R2 fails at a key of more than 1,024 bytes; %-encoding makes none shorter, a page's name adds 11

function quality(accept, type) {
  let best = 0;
  for (const part of accept.toLowerCase().split(",")) {
    const [name, ...parameters] = part.split(";").map((word) => word.trim());
    if (name !== type) continue;
    const q = parameters.find((word) => word.startsWith("q="));
    best = Math.max(best, q ? parseFloat(q.slice(2)) || 0 : 1);
  }
  return best;
}

/** The key of the object for a path that begins after the first slash; null for what is nobody's business. */
function keyOf(path, accept) {
  let key;
  try {
    key = decodeURIComponent(path); // %2B and + are both a plus: this is a path, no form
  } catch {
    return null; // a % that begins nothing
  }
  // Not of whl/variant/: its pages are HTML alone.
  const simple = key.match(/^whl\/(?!variant\/)([^/]+)\/simple\/([^/]+\/)?$/);
  const json = Math.max(
    quality(accept, "application/vnd.pypi.simple.v1+json"),
    quality(accept, "application/vnd.pypi.simple.latest+json"),
  );
  if (simple && json > 0 && json >= quality(accept, "text/html")) {
    key = `whl/${simple[1]}/v1-json/${simple[2] ?? ""}index.json`;
  } else if (/^whl\/[^/]+\/v1-json\/([^/]+\/)?$/.test(key)) {
    key += "index.json";
  } else if (key === "" || key.endsWith("/")) {
    key += "index.html";
  }
  // No part begins with a dot: neither `..`, which R2 takes for a name like any other, nor a store's own files.
  return PUBLIC.test(key) && !/(?:^|\/)\./.test(key) && path.length <= LONGEST ? key : null;
}

/** A range of an object as R2 takes it: undefined for the whole object, null where there is nothing in it. */
function rangeOf(header, size) {
  const [, first, last] = header?.match(/^bytes=(\d*)-(\d*)$/) ?? []; // of several ranges a server may send everything
  if (!first && !last) return undefined;
  const offset = first ? Number(first) : Math.max(0, size - Number(last));
  const end = first && last ? Math.min(Number(last), size - 1) : size - 1;
  if (first && last && Number(last) < Number(first)) return undefined; // no range at all, says RFC 9110
  return offset <= end ? { offset, length: end - offset + 1 } : null;
}

function failed(status, text, headers = {}) {
  const fixed = { "Access-Control-Allow-Origin": "*", "Cache-Control": "no-cache", Vary: "Accept" };
  return new Response(`${text}\n`, { status, headers: { ...fixed, ...headers } });
}

export default {
  async fetch(request, env) {
    const { method, headers: asked } = request;
    if (method !== "GET" && method !== "HEAD") return failed(405, "Method not allowed", { Allow: "GET, HEAD" });
    const key = keyOf(new URL(request.url).pathname.slice(1), asked.get("Accept") ?? "");
    if (key === null) return failed(404, "Not found");

    const wheel = /^whl\/(?:variant\/)?files\//.test(key);
    const tags = asked.get("If-None-Match")?.match(/"[^"]*"|\*/g) ?? []; // without W/, and never one that R2 fails at
    let object, range;
    if (method === "HEAD" || (wheel && asked.has("Range"))) {
      object = await env.WHEELS.head(key); // R2 fails at a range after the end, so the size comes first
    }
    // Wheels alone: they never change between the two requests, and are stored as they are. uv reads their ends.
    const current = [null, object?.httpEtag].includes(asked.get("If-Range"));
    if (object && wheel && method === "GET" && current) range = rangeOf(asked.get("Range"), object.size);
    if (method === "GET" && object !== null && range !== null) {
      object = await env.WHEELS.get(key, { range, onlyIf: new Headers(tags.length ? { "If-None-Match": tags.join() } : {}) });
    }
    if (object === null) return failed(404, "Not found");
    if (range === null) return failed(416, "Range not satisfiable", { "Content-Range": `bytes */${object.size}` });

    const headers = new Headers();
    object.writeHttpMetadata(headers);
    headers.set("ETag", object.httpEtag);
    headers.set("Cache-Control", wheel ? "public, max-age=31536000, immutable" : "no-cache");
    headers.set("Access-Control-Allow-Origin", "*");
    if (wheel) headers.set("Accept-Ranges", "bytes");
    else headers.set("Vary", "Accept");

    if (tags.includes("*") || tags.includes(object.httpEtag)) return new Response(null, { status: 304, headers });
    if (method === "HEAD") {
      headers.set("Content-Length", object.size);
      return new Response(null, { headers });
    }
    if (range) headers.set("Content-Range", `bytes ${range.offset}-${range.offset + range.length - 1}/${object.size}`);
    return new Response(object.body, { status: range ? 206 : 200, headers });
  },
};
