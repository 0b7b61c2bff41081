// A CloudFront function (runtime 2.0) before a bucket, for both events of a behaviour: viewer request and viewer response.
// Folders are answered with their page, JSON where a client asks for it at least as much as for HTML (PEP 691), and a + in
// a path is written %2B, since S3 takes it for a space. Put `Accept` into the cache key of /whl/*/simple/*.
// ECMAScript 5.1 alone; tested in such an engine before Ceph, not in CloudFront itself.
function quality(accept, type) {
  var best = 0;
  accept.toLowerCase().split(",").forEach(function (part) {
    var words = part.split(";").map(function (word) { return word.trim(); });
    if (words[0] !== type) return;
    var q = 1;
    words.slice(1).forEach(function (word) { if (word.indexOf("q=") === 0) q = parseFloat(word.slice(2)) || 0; });
    if (q > best) best = q;
  });
  return best;
}

function page(uri, accept) {
  var json = Math.max(quality(accept, "application/vnd.pypi.simple.v1+json"),
                      quality(accept, "application/vnd.pypi.simple.latest+json"));
  // Not of whl/variant/: its pages are HTML alone.
  var simple = uri.match(/^\/whl\/(?!variant\/)([^\/]+)\/simple\/([^\/]+\/)?$/);
  if (simple && json > 0 && json >= quality(accept, "text/html")) {
    return "/whl/" + simple[1] + "/v1-json/" + (simple[2] || "") + "index.json";
  }
  if (/^\/whl\/[^\/]+\/v1-json\/([^\/]+\/)?$/.test(uri)) return uri + "index.json";
  return /\/$/.test(uri) ? uri + "index.html" : uri;
}

function handler(event) {
  if (event.context.eventType === "viewer-response") {
    event.response.headers["access-control-allow-origin"] = { value: "*" };
    event.response.headers.vary = { value: "Accept" };
    return event.response;
  }
  var request = event.request;
  var accept = request.headers.accept ? request.headers.accept.value : "";
  request.uri = page(request.uri.replace(/\+/g, "%2B"), accept);
  return request;
}
