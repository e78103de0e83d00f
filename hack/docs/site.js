// What the pages of the site do beyond mdBook: the copy button takes commands without prompts and output, and cells of tables
// know the heads of their columns, which a phone shows beside them (site.css).
"use strict";

/** Returns the word that ends a here-document which a line begins, or undefined. */
function endOfDocument(line) {
  return line.match(/<<-?\s*(['"]?)(\w+)\1/)?.[2];
}

/** Reports whether the shell waits for more after these lines: within quotation marks, or after a backslash. */
function isUnfinished(text) {
  let quote = "";
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === "\\" && quote !== "'") at++;
    else if (quote) quote = character === quote ? "" : quote;
    else if (character === "#" && /(^|\s)$/.test(text.slice(0, at))) at = (text + "\n").indexOf("\n", at);
    else if (character === "'" || character === '"') quote = character;
  }
  return quote !== "" || text.endsWith("\\");
}

/** Returns the commands of a block, which are the lines after a prompt and those that continue them. Without prompts, all of it. */
function commandsOf(text) {
  const lines = text.split("\n");
  const found = [];
  for (let at = 0; at < lines.length; at++) {
    if (!lines[at].startsWith("$ ")) continue;
    let command = lines[at].slice(2);
    while (isUnfinished(command) && at + 1 < lines.length) command += "\n" + lines[++at];
    const end = endOfDocument(command);
    for (let line; end && line !== end && at + 1 < lines.length; command += "\n" + line) line = lines[++at];
    found.push(command);
  }
  return found.length > 0 ? found.join("\n") + "\n" : text;
}

if (typeof window !== "undefined") {
  // mdBook's button asks this function of its own for the text.
  const whole = window.playground_text;
  window.playground_text = (block, ...rest) => {
    const text = whole(block, ...rest);
    return block.querySelector("code.language-console") ? commandsOf(text) : text;
  };
  for (const table of document.querySelectorAll(".content table")) {
    const heads = [...table.querySelectorAll("th")].map((head) => head.textContent);
    for (const row of heads.length > 2 ? table.tBodies[0].rows : []) {
      for (const cell of [...row.cells].slice(1)) if (heads[cell.cellIndex]) cell.dataset.head = heads[cell.cellIndex];
    }
  }
} else {
  module.exports = { commandsOf };
}
