// Verifies tokens with the JWT libraries of Node.
// Input: {"keys": {algorithm: public key as PEM}, "tokens": [{"name", "algorithm", "token"}, ...]}.
// Output: a comment with versions, and lines with a library, the name of a token, and whether it was accepted.
import { createPublicKey } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createVerifier } from 'fast-jwt';
import { verify as hono } from 'hono/jwt';
import * as jose from 'jose';
import jsonwebtoken from 'jsonwebtoken';

const libraries = {
  jsonwebtoken: (token, pem, algorithm) => jsonwebtoken.verify(token, pem, { algorithms: [algorithm] }),
  jose: async (token, pem, algorithm) => {
    const key = createPublicKey(pem);
    return (await jose.jwtVerify(token, key, { algorithms: [algorithm] })).payload;
  },
  // The library of @fastify/jwt.
  'fast-jwt': (token, pem, algorithm) => createVerifier({ key: pem, algorithms: [algorithm] })(token),
  hono: (token, pem, algorithm) => hono(token, pem, algorithm),
};

async function accepted(verify, ...values) {
  try {
    return (await verify(...values)).sub === 'user';
  } catch {
    return false;
  }
}

const { dependencies } = JSON.parse(readFileSync('package.json'));
const versions = Object.entries(dependencies).map((words) => words.join(' '));
console.log(`# Node.js ${process.version.slice(1)}, ${versions.join(', ')}`);
const { keys, tokens } = JSON.parse(readFileSync(0));
for (const [library, verify] of Object.entries(libraries)) {
  for (const { name, algorithm, token } of tokens) {
    console.log([library, name, await accepted(verify, token, keys[algorithm], algorithm)].join('\t'));
  }
}
