// A client that asks Sluice whether a customer may go on, reserves a cost in advance, and settles it in the end.
//
//   const asker = new Asker("http://localhost:8080");
//   const answer = await asker.allow("shop/checkout", "per-customer", ["alice"]);
//   if (!answer.allowed) console.log(`try again in ${answer.retryAfter} s`);

/** Sluice refused to answer, because the call is wrong: `detail` says why, and `field` is the part of the body, if it is one. */
export class Problem extends Error {
  readonly status: number;
  readonly detail: string;
  readonly field: string | undefined;

  constructor(status: number, detail: string, field?: string) {
    super(field === undefined ? `${status}: ${detail}` : `${status}: ${field}: ${detail}`);
    this.status = status;
    this.detail = detail;
    this.field = field;
  }
}

/** Sluice cannot be reached, or cannot answer now. */
export class Unanswered extends Error {}

/** An answer of Sluice, or that of `failOpen`. */
export interface Answer {
  /** Whether it allows to go on. */
  allowed: boolean;
  /** Whether Sluice gave the answer. If not, `failure` says why. */
  answered: boolean;
  failure?: Unanswered;
  /** What is left of the limit. */
  remaining?: number | undefined;
  /** The seconds after which the same call may be allowed. */
  retryAfter?: number | undefined;
  /** The id of the reservation. There is none if nothing is reserved. */
  id?: string | undefined;
}

export interface Options {
  /** The file with the token of a service account, if the service requires one. */
  tokenFile?: string;
  /** The longest time that an answer takes, in seconds. */
  timeout?: number;
  /** Whether what Sluice does not answer is allowed. */
  failOpen?: boolean;
}

interface Checked {
  allowed: boolean;
  limits: { remaining?: number; retryAfterSeconds?: number }[];
  reservation?: { id: string };
}

// Types of Node.js are not needed to compile this.
const FILES: string = "node:fs/promises";
// Milliseconds before each further try to settle.
const PAUSES = [100, 200, 400];
// The service has closed a connection that was kept.
const CLOSED = ["UND_ERR_SOCKET", "ECONNRESET", "EPIPE"];

/** Asks the service at `url`. */
export class Asker {
  private readonly url: string;
  private readonly tokenFile: string | undefined;
  private readonly timeout: number;
  private readonly failOpen: boolean;

  constructor(url: string, { tokenFile, timeout = 0.5, failOpen = true }: Options = {}) {
    this.url = url.replace(/\/+$/, "");
    this.tokenFile = tokenFile;
    this.timeout = timeout;
    this.failOpen = failOpen;
  }

  /** Charges the cost, by default 1, if the limit has room for it. Throws Problem. */
  async allow(policy: string, limit: string, key: string[], cost?: number): Promise<Answer> {
    return this.check({ policy, limit, key, cost });
  }

  /**
   * Charges the cost in advance if the limit has room for it, by default what the policy reserves. Throws Problem.
   * @param expiresAfter the time in which it can be settled, in seconds.
   */
  async reserve(policy: string, limit: string, key: string[], cost?: number, expiresAfter?: number): Promise<Answer> {
    const reserve = expiresAfter === undefined ? {} : { expiresAfterSeconds: Math.ceil(expiresAfter) };
    return this.check({ policy, limit, key, cost, reserve });
  }

  /**
   * Charges the cost in place of what was reserved, or just that without one. Returns false if it was settled before or has
   * expired. Throws Unanswered after four tries.
   */
  async settle(id: string | undefined, cost?: number): Promise<boolean> {
    if (id === undefined) return false;
    for (const pause of [...PAUSES, undefined]) {
      try {
        return ((await this.post("/v1/settle", { id, cost })) as { settled: boolean }).settled;
      } catch (error) {
        if (!(error instanceof Unanswered) || pause === undefined) throw error;
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
    return false;
  }

  private async check(check: object): Promise<Answer> {
    try {
      const { allowed, limits, reservation } = (await this.post("/v1/check", check)) as Checked;
      const { remaining, retryAfterSeconds } = limits[0] ?? {};
      return { allowed, answered: true, remaining, retryAfter: retryAfterSeconds, id: reservation?.id };
    } catch (error) {
      if (!(error instanceof Unanswered)) throw error;
      return { allowed: this.failOpen, answered: false, failure: error };
    }
  }

  private async post(path: string, body: object): Promise<object> {
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (this.tokenFile !== undefined) {
      // Tokens are replaced before they expire, so the file is read each time.
      const { readFile } = await import(FILES);
      headers["authorization"] = `Bearer ${(await readFile(this.tokenFile, "utf8")).trim()}`;
    }
    const init = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(this.timeout * 1000) };
    const { status, text } = await this.send(this.url + path, init);
    let found: { detail?: string; field?: string } | undefined;
    try {
      found = JSON.parse(text);
    } catch {
      // A proxy may have answered.
    }
    if (status === 200 && found) return found;
    const detail = found?.detail ?? text.slice(0, 200);
    if (status === 200 || status >= 500) throw new Unanswered(`${path}: ${status}: ${detail}`);
    throw new Problem(status, detail, found?.field);
  }

  private async send(url: string, init: RequestInit, again = true): Promise<{ status: number; text: string }> {
    try {
      const response = await fetch(url, init);
      return { status: response.status, text: await response.text() };
    } catch (error) {
      const cause = (error as { cause?: { code?: string } }).cause;
      if (again && CLOSED.includes(cause?.code ?? "")) return this.send(url, init, false);
      throw new Unanswered(`${url}: ${cause?.code ?? error}`, { cause: error });
    }
  }
}
