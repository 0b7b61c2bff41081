// A CloudFront function (viewer request, runtime 2.0) before a bucket; a Cloudflare transform rule does the same for R2.
// Folders are answered with their page, JSON where a client asks for it at least as much as for HTML (PEP 691), and a + in
// a path is written %2B, since S3 takes it for a space. Put `Accept` into the cache key of /whl/*/simple/*.
// Written from Amazon's documentation and not run yet.
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

function handler(event) {
  var request = event.request;
  var accept = request.headers.accept ? request.headers.accept.value : "";
  var json = Math.max(quality(accept, "application/vnd.pypi.simple.v1+json"),
                      quality(accept, "application/vnd.pypi.simple.latest+json"));
  var uri = request.uri.replace(/\+/g, "%2B");
  var page = uri.match(/^\/whl\/([^\/]+)\/simple\/([^\/]+\/)?$/);
  if (page && json > 0 && json >= quality(accept, "text/html")) {
    uri = "/whl/" + page[1] + "/v1-json/" + (page[2] || "") + "index.json";
  } else if (/\/v1-json\/([^\/]+\/)?$/.test(uri)) {
    uri += "index.json";
  } else if (uri.endsWith("/")) {
    uri += "index.html";
  }
  request.uri = uri;
  return request;
}
