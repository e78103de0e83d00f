// ask.ts SERVICE NOBODY SILENCE: asks a service, an address without one, and one that takes requests and never answers. Prints
// the answers.
//
// drive.ts SCRIPT: sends what scripted responses are for.
import { Asker, Problem } from "./ask.js";

declare const process: { argv: string[] };

const FILES: string = "node:fs/promises";
const { writeFile } = await import(FILES);
const POLICY = "shop/checkout";
const KEY = ["typescript"];

async function problem(call: Promise<unknown>): Promise<string> {
  try {
    await call;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return `problem ${error.status} ${error.field ?? "None"}`;
  }
  return "no problem";
}

async function service(url: string): Promise<void> {
  const asker = new Asker(url, { timeout: 60 });
  for (let n = 0; n < 5; n++) {
    const answer = await asker.allow(POLICY, "per-customer", KEY);
    console.log("allow", answer.allowed, answer.answered, answer.remaining);
  }
  const denied = await asker.allow(POLICY, "per-customer", KEY);
  console.log("allow", denied.allowed, denied.answered, denied.remaining, (denied.retryAfter ?? 0) > 0);

  const reserve = () =>
    Promise.all(Array.from({ length: 16 }, () => asker.reserve(POLICY, "tokens", KEY, 1000, 600)));
  const settle = async (ids: (string | undefined)[], cost: number) => {
    let settled = 0;
    for (const id of ids) settled += Number(await asker.settle(id, cost));
    return settled;
  };
  const answers = await reserve();
  const ids = answers.filter((answer) => answer.allowed).map((answer) => answer.id);
  const without = answers.filter((answer) => answer.id === undefined).length;
  console.log("reserved", ids.length, "ids", new Set(ids).size, "without", without);
  console.log("settled", await settle(ids, 400));
  console.log("settled again", await settle(ids, 9000));
  console.log("reserved", (await reserve()).filter((answer) => answer.allowed).length);

  const reservation = await asker.reserve(POLICY, "tokens", ["other"], 1000);
  await asker.settle(reservation.id, 420);
  console.log("left", (await asker.allow(POLICY, "tokens", ["other"], 0)).remaining);

  await asker.reserve(POLICY, "tokens", ["third"]);
  console.log("default", (await asker.allow(POLICY, "tokens", ["third"], 0)).remaining);

  const jobs = [];
  for (let n = 0; n < 3; n++) jobs.push(await asker.reserve(POLICY, "jobs", KEY));
  console.log("jobs", ...jobs.map((job) => job.allowed));
  console.log("settled", await asker.settle(jobs[0]?.id));
  console.log("job", (await asker.reserve(POLICY, "jobs", KEY)).allowed);

  console.log(await problem(asker.allow("shop/other", "per-customer", KEY)));
  console.log(await problem(asker.allow(POLICY, "per-customer", [...KEY, "more"])));
  console.log(await problem(asker.settle("none")));
}

async function nobody(url: string, timeout: number): Promise<void> {
  for (const failOpen of [true, false]) {
    const asker = new Asker(url, { timeout, failOpen });
    const allow = await asker.allow(POLICY, "per-customer", KEY);
    console.log("nobody", allow.allowed, allow.answered, allow.id === undefined);
    const reserve = await asker.reserve(POLICY, "tokens", KEY, 1000);
    console.log("nobody", reserve.allowed, reserve.answered, reserve.id === undefined);
  }
}

async function script(url: string): Promise<void> {
  const token = (text: string) => writeFile("token", `${text}\n`);
  const asker = new Asker(`${url}/prefix/`, { tokenFile: "token", timeout: 60, failOpen: false });
  await token("one");
  console.log("settled", await asker.settle("some", 400));
  await token("two");
  console.log("allow", (await asker.allow(POLICY, "per-customer", KEY, 2)).allowed);
  console.log("allow", (await asker.allow(POLICY, "per-customer", KEY)).answered);
  console.log(await problem(asker.reserve(POLICY, "tokens", KEY, 7, 599.5)));
}

const [, , first = "", second, third] = process.argv;
if (second === undefined || third === undefined) {
  await script(first);
} else {
  await service(first);
  await nobody(second, 60);
  await nobody(third, 0.5);
}
