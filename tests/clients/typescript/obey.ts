// obey.ts URL NUMBER: sends so many requests, and prints the status of each, or that the client gave up.
import { Client, GaveUp } from "./obey.js";

declare const process: { argv: string[] };

const [, , url = "", requests] = process.argv;
const client = new Client();
for (let n = 0; n < Number(requests); n++) {
  try {
    const response = await client.get(url);
    await response.arrayBuffer();
    console.log(response.status);
  } catch (error) {
    if (!(error instanceof GaveUp)) throw error;
    console.log("gave up");
  }
}
