// node r2.mjs WORKER PORT ORIGIN: runs a Cloudflare Worker in Node, with `env.WHEELS` as R2's documentation has it, read from
// a bucket of another S3 server that everybody may read. What Cloudflare does around a Worker and Node does not is done here.
import http from "node:http";
import { Readable } from "node:stream";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const [worker, port, origin] = process.argv.slice(2);

/** The object as it is stored: Node's fetch() would unpack it. */
function ask(method, key, headers = {}) {
  if (Buffer.byteLength(key) > 1024) throw new Error(`${key}: too long`); // R2: 10020
  const path = `${new URL(origin).pathname}/${key.split("/").map(encodeURIComponent).join("/")}`;
  return new Promise((resolve, reject) => {
    const sent = http.request(origin, { method, path, headers: { ...headers, "Accept-Encoding": "identity" } }, resolve);
    sent.on("error", reject).end();
  });
}

class R2Object {
  constructor(key, answer) {
    const { "content-type": type, "content-encoding": encoding, "cache-control": cache, etag } = answer.headers;
    this.key = key;
    this.etag = etag.replaceAll('"', "");
    this.httpEtag = `"${this.etag}"`;
    this.size = Number(answer.headers["content-range"]?.split("/")[1] ?? answer.headers["content-length"]);
    this.httpMetadata = { contentType: type, contentEncoding: encoding, cacheControl: cache };
  }
  writeHttpMetadata(headers) {
    const names = { contentType: "Content-Type", contentEncoding: "Content-Encoding", cacheControl: "Cache-Control" };
    for (const [field, name] of Object.entries(names)) {
      if (this.httpMetadata[field] !== undefined) headers.set(name, this.httpMetadata[field]);
    }
  }
}

/** The tags of a header; the runtime throws at one that is not quoted. */
function tagsOf(text) {
  return text.split(",").map((word) => {
    const found = word.trim().match(/^(?:W\/)?"([^"]*)"$|^\*$/);
    if (!found) throw new Error(`Invalid ETag: ${word}`);
    return found[1] ?? "*";
  });
}

const WHEELS = {
  async head(key) {
    const answer = await ask("HEAD", key);
    answer.resume();
    if (answer.statusCode !== 200 && answer.statusCode !== 404) throw new Error(`${key}: ${answer.statusCode}`);
    return answer.statusCode === 200 ? new R2Object(key, answer) : null;
  },
  async get(key, { range, onlyIf } = {}) {
    const bytes = range && { Range: `bytes=${range.offset}-${range.offset + range.length - 1}` };
    const answer = await ask("GET", key, bytes);
    const { statusCode } = answer;
    if (statusCode === 404) return answer.resume(), null;
    if (statusCode !== (range ? 206 : 200)) throw new Error(`${key}: ${statusCode}`); // R2: 10039, no such range
    const object = new R2Object(key, answer);
    const tags = onlyIf?.has("If-None-Match") ? tagsOf(onlyIf.get("If-None-Match")) : [];
    if (tags.includes("*") || tags.includes(object.etag)) return answer.resume(), object; // without a body
    return Object.assign(object, { body: Readable.toWeb(answer) });
  },
};

globalThis.Response = class extends Response {
  constructor(body, init) {
    super(body, init);
    this.encodeBody = init?.encodeBody ?? "automatic";
  }
};
const { default: handler } = await import(pathToFileURL(worker));

http.createServer(async (incoming, outgoing) => {
  try {
    const { method, headers } = incoming;
    const request = new Request(`http://${headers.host}${incoming.url}`, { method, headers });
    // Cloudflare asks for what it understands itself, and keeps what the client sent.
    Object.defineProperty(request, "cf", { value: { clientAcceptEncoding: headers["accept-encoding"] ?? "" } });
    request.headers.set("Accept-Encoding", "gzip, br");
    const response = await handler.fetch(request, { WHEELS });
    let data = Buffer.from(await response.arrayBuffer());
    if (response.headers.get("Content-Encoding") === "gzip" && data.length && response.encodeBody !== "manual") {
      data = gzipSync(data); // the runtime does what the header promises, unless told that it is done
    }
    if (method !== "HEAD" && response.status !== 304) response.headers.set("Content-Length", data.length);
    outgoing.writeHead(response.status, Object.fromEntries(response.headers)).end(data);
  } catch (error) {
    console.error(error);
    outgoing.writeHead(500).end(String(error)); // Cloudflare's "1101: Worker threw exception"
  }
}).listen(Number(port), "127.0.0.1");
