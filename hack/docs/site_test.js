// site_test.js SITE: checks what site.js makes of the blocks of commands in docs/, that mdBook still asks it, and that the search
// of the built site finds the words of other limiters.
"use strict";
const { execFileSync } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");
const { commandsOf } = require("./site.js");

const site = process.argv[2];
const docs = path.join(__dirname, "../../docs");
const problems = [];
const script = (name) => fs.readFileSync(path.join(site, fs.readdirSync(site).find((file) => file.startsWith(name) && file.endsWith(".js"))), "utf8");

for (const [block, expected] of [
  ["$ a\nb\n", "a\n"],
  ["$ a \\\n    --b\nc\n$ d  # it's e\nf\n", "a \\\n    --b\nd  # it's e\n"],
  ["$ a 'b\nc' \"it's\"\nd\n", "a 'b\nc' \"it's\"\n"],
  ["$ a - <<'END'\nb: \"\nEND\nc\n", "a - <<'END'\nb: \"\nEND\n"],
  ["a\n  b\n", "a\n  b\n"],
]) {
  if (commandsOf(block) !== expected) problems.push(`${JSON.stringify(block)} is copied as ${JSON.stringify(commandsOf(block))}`);
}

let blocks = 0;
for (const page of fs.readdirSync(docs, { recursive: true }).filter((name) => name.endsWith(".md"))) {
  for (const [, indent, block] of fs.readFileSync(path.join(docs, page), "utf8").matchAll(/^( *)```console\n([^]*?)^ *```/gm)) {
    const text = block.replaceAll(new RegExp(`^${indent}`, "gm"), "");
    const copied = commandsOf(text);
    if (!text.startsWith("$ ")) problems.push(`${page}: a block of commands begins without a prompt: ${text}`);
    if (/^\$ /m.test(copied)) problems.push(`${page}: a prompt is copied: ${copied}`);
    try {
      execFileSync("bash", ["-n"], { input: copied, stdio: "pipe" });
    } catch (error) {
      problems.push(`${page}: what is copied is no command: ${copied}${error.stderr}`);
    }
    blocks++;
  }
}
if (blocks < 50) problems.push(`only ${blocks} blocks of commands were found`);
if (!script("book-").includes("function playground_text(")) problems.push("mdBook's copy button no longer calls playground_text: see site.js");

const context = vm.createContext({ window: { search: {} } });
vm.runInContext(`${script("elasticlunr-")}\n${script("searchindex-")}\nthis.index = elasticlunr.Index.load(window.search.index);`, context);
const { index, window } = context;
for (const [words, page] of Object.entries({
  whitelist: "policy.html#exemptions", allowlist: "policy.html#exemptions",
  denylist: "policy.html#tiers", blacklist: "policy.html#tiers", ban: "policy.html#tiers",
  throttle: "policy.html#leakybucket", throttling: "policy.html#leakybucket", "spike arrest": "policy.html#leakybucket",
  "dry run": "policy.html#shadow", shadow: "policy.html#shadow",
  quota: "policy.html#rates-and-quotas", burst: "policy.html#tokenbucket", 429: "troubleshooting.html",
  "leaky bucket": "policy.html#leakybucket", "token bucket": "policy.html#tokenbucket",
  lockout: "policy.html#blocks", cooldown: "policy.html#blocks", "brute force": "recipes.html#logins",
  bulkhead: "concurrency.html", "load shedding": "concurrency.html", backoff: "clients.html",
})) {
  const found = index.search(words, window.search.search_options).slice(0, 10).map(({ ref }) => window.search.doc_urls[ref]);
  if (!found.some((url) => url.startsWith(page))) problems.push(`a search for "${words}" does not show ${page} among its first ten: ${found.join(" ")}`);
}

console.log(problems.join("\n") || `${blocks} blocks of commands are copied as commands, and the search knows the words of other limiters`);
process.exitCode = problems.length > 0 ? 1 : 0;
