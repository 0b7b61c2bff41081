// The parser imports JSON without saying so, which Node.js from 20 on refuses: this says it.
import {register} from "node:module";
register("data:text/javascript," + encodeURIComponent(`
export async function resolve(name, context, next) {
  const found = await next(name, name.endsWith(".json") ? {...context, importAttributes: {type: "json"}} : context);
  return name.endsWith(".json") ? {...found, importAttributes: {type: "json"}} : found;
}`));
