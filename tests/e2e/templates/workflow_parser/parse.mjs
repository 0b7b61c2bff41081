// Prints, as JSON, what GitHub's own parser finds wrong in each workflow that is named, by file.
import {readFileSync} from "node:fs";
import {basename} from "node:path";
import {parseWorkflow, convertWorkflowTemplate, NoOperationTraceWriter} from "@actions/workflow-parser";

const found = {};
for (const path of process.argv.slice(2)) {
  const trace = new NoOperationTraceWriter();
  const parsed = parseWorkflow({name: basename(path), content: readFileSync(path, "utf8")}, trace);
  const errors = parsed.context.errors.getErrors().map(error => error.message);
  if (parsed.value && errors.length === 0) {
    const template = await convertWorkflowTemplate(parsed.context, parsed.value);
    errors.push(...(template.errors ?? []).map(error => error.Message ?? error.message ?? String(error)));
    if (!template.jobs?.length) errors.push("no jobs");
  }
  found[path] = [...new Set(errors)];
}
console.log(JSON.stringify(found));
