import { describe, expect, test } from "bun:test";
import { AgentError } from "../../src/errors/agent-error.ts";
import { options } from "./options.ts";
import { parseRequest } from "./request.ts";

const defaults = options.parse({});

function refusal(request: unknown): AgentError {
  try {
    parseRequest(request, defaults);
  } catch (error) {
    if (error instanceof AgentError) return error;
    throw error;
  }
  throw new Error(`accepted: ${JSON.stringify(request)}`);
}

describe("procbox request", () => {
  test("an empty object takes the configured defaults", () => {
    expect(parseRequest({}, defaults)).toEqual({
      net_ports: [],
      memory_mib: 512,
      max_processes: 4096,
      timeout_seconds: 30,
      max_timeout_seconds: 300,
      cpu_seconds: null,
    });
  });

  test("memory_mib is the fallback for max_memory_mib", () => {
    expect(parseRequest({ memory_mib: 100 }, defaults).memory_mib).toBe(100);
    expect(parseRequest({ memory_mib: 100, max_memory_mib: 200 }, defaults).memory_mib).toBe(200);
  });

  test("ports are sorted and de-duplicated", () => {
    expect(parseRequest({ net_ports: [443, 80, 443] }, defaults).net_ports).toEqual([80, 443]);
  });

  test.each([
    [{ max_memory_mib: 63 }],
    [{ max_memory_mib: 2049 }],
    [{ max_processes: 0 }],
    [{ max_processes: 4097 }],
    [{ timeout_seconds: 0 }],
    [{ timeout_seconds: 301 }],
    [{ cpu_seconds: 0 }],
    [{ net_ports: [0] }],
    [{ net_ports: [65_536] }],
  ])("out of bounds is refused, never lowered: %j", (request) => {
    const error = refusal(request);
    expect(error.status).toBe(400);
    expect(error.message).toContain(Object.keys(request)[0] ?? "");
  });

  test.each([[{ max_memory_mib: "512" }], [{ timeout_seconds: 1.5 }], [{ net_ports: 80 }], ["x"], [null]])(
    "a wrong type is 422 and names the field: %j",
    (request) => {
      const error = refusal(request);
      expect(error.status).toBe(422);
      expect(error.message).toStartWith("procbox");
    },
  );
});
