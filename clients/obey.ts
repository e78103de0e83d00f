// A client that obeys rate limits: it slows down before it is denied, and waits as long as it is told when it is.
//
//   const client = new Client();
//   const response = await client.get("http://localhost:8790/orders");

/** The request was denied, and the client stopped trying: no wait helps, the wait is too long, or all tries were denied. */
export class GaveUp extends Error {}

// A name in quotation marks, and its parameters: "per-client/1m";r=0;t=12
const ITEM = /"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z]+=[^;,]+)*)/g;

type Parameters = Map<string, string>;

function items(header: string | null): Map<string, Parameters> {
  const found = new Map<string, Parameters>();
  for (const [, name = "", text = ""] of (header ?? "").matchAll(ITEM)) {
    const parameters: Parameters = new Map();
    for (const pair of text.split(";")) {
      const equals = pair.indexOf("=");
      if (equals > 0) parameters.set(pair.slice(0, equals).trim(), pair.slice(equals + 1).trim());
    }
    found.set(name, parameters);
  }
  return found;
}

/** Returns the milliseconds of Retry-After, which is a number of seconds or a date, or undefined without one. */
export function retryAfter(headers: Headers, now: number = Date.now()): number | undefined {
  const text = (headers.get("retry-after") ?? "").trim();
  if (/^\d+$/.test(text)) return Number(text) * 1000;
  const date = Date.parse(text);
  return Number.isNaN(date) ? undefined : Math.max(0, date - now);
}

/** Returns the milliseconds until the next request: when nothing remains, the time in which a limit admits one more. */
export function pause(headers: Headers): number {
  const rates = items(headers.get("ratelimit-policy"));
  let longest = 0;
  for (const [name, state] of items(headers.get("ratelimit"))) {
    if (state.get("r") !== "0") continue;
    const quota = Number(rates.get(name)?.get("q"));
    const window = Number(rates.get(name)?.get("w"));
    const wait = quota > 0 && window > 0 ? window / quota : Number(state.get("t") ?? 0);
    longest = Math.max(longest, wait * 1000);
  }
  return longest;
}

/** Sends requests, of which none precedes the time that the limits of an earlier one allow. */
export class Client {
  private next = 0;
  private readonly attempts: number;
  private readonly longest: number;

  /** @param attempts tries for each request. @param longest the longest wait before another try, in milliseconds. */
  constructor(attempts = 5, longest = 300_000) {
    this.attempts = attempts;
    this.longest = longest;
  }

  /** Returns the response to a GET request, or throws GaveUp. */
  async get(url: string, init: RequestInit = {}): Promise<Response> {
    for (let attempt = 0; attempt < this.attempts; attempt++) {
      await this.wait();
      const response = await fetch(url, init);
      if (response.status !== 429) {
        this.notBefore(performance.now() + pause(response.headers));
        return response;
      }
      await response.arrayBuffer();
      const wait = retryAfter(response.headers);
      if (wait === undefined) throw new GaveUp(`${url}: denied without Retry-After: no wait helps`);
      if (wait > this.longest) throw new GaveUp(`${url}: denied: Retry-After is ${wait / 1000} s, and the longest wait ${this.longest / 1000} s`);
      this.notBefore(performance.now() + wait);
    }
    throw new GaveUp(`${url}: denied ${this.attempts} times`);
  }

  private notBefore(next: number): void {
    this.next = Math.max(this.next, next);
  }

  private async wait(): Promise<void> {
    // Timers may fire a moment early.
    for (let left = this.next - performance.now(); left > 0; left = this.next - performance.now()) {
      await new Promise((resolve) => setTimeout(resolve, Math.min(Math.ceil(left), 2 ** 31 - 1)));
    }
  }
}
