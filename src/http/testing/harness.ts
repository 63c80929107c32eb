// The whole application on fakes. Every response that a test gets through `call` is checked against the OpenAPI document
// of its route, so that the document cannot drift from what is answered.
import { configSchema } from "../../config/schema.ts";
import type { JsonObject } from "../../contracts/json.ts";
import type { Logger } from "../../contracts/log.ts";
import type { AuditEntry } from "../../telemetry/audit.ts";
import { EventBus } from "../../telemetry/events.ts";
import { NetworkWorld } from "../../network/testing/world.ts";
import { createApp, type HttpApp } from "../app.ts";
import type { HttpDependencies, ReadinessCheck } from "../dependencies.ts";
import { checkResponse } from "./checker.ts";
import { FakeConsoles } from "./consoles.ts";
import { FakeExecutions } from "./executions.ts";
import { FakeFiles } from "./files.ts";
import { FakeFlows } from "./flows.ts";
import { FakePools } from "./pools.ts";
import { FakePorts } from "./ports.ts";
import { FakeOperations } from "./operations.ts";
import { FakeResources } from "./resources.ts";
import { FakeSnapshots } from "./snapshots.ts";
import { FakeTemplates } from "./templates.ts";
import { MemoryStore } from "./store.ts";

export interface TestToken {
  readonly token: string;
  readonly role: "admin" | "read-only";
  readonly name?: string;
  readonly tenant?: string;
}

/** What may be real. */
type Core = Pick<HttpDependencies, "operations" | "store"> & Partial<Pick<HttpDependencies, "executions" | "files">>;

export interface HarnessOptions {
  readonly listen?: string;
  readonly auth?: Record<string, unknown>;
  readonly tls?: Record<string, unknown>;
  /** Another than the usual one. */
  readonly network?: NetworkWorld;
  /** Whether the dataplane tells flows, as it does unless said. */
  readonly hasFlows?: boolean;
  /** A real core instead of the fakes. */
  readonly core?: Core;
}

export interface CallOptions {
  readonly token?: string;
  readonly headers?: Record<string, string>;
  /** Sent as JSON. */
  readonly json?: unknown;
  /** Sent as it is, without a content type unless `headers` has one. */
  readonly raw?: string | Uint8Array;
  /** Reads the first piece of a body that does not end by itself. */
  readonly isEndless?: boolean;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** The parsed body; undefined when it is not JSON. */
  readonly json: any;
}

const fakePlugin: JsonObject = {
  kind: "backend",
  id: "fake",
  summary: "Answers without doing.",
  state: "loaded",
  capabilities: [],
  missing: [],
  fault: null,
  source: "built-in",
};

export class Harness {
  readonly store = new MemoryStore();
  readonly operations = new FakeOperations(this.store);
  readonly executions = new FakeExecutions(this.operations);
  readonly files = new FakeFiles();
  readonly ports = new FakePorts();
  readonly snapshots = new FakeSnapshots(this.operations, this.store);
  readonly consoles = new FakeConsoles();
  readonly pools = new FakePools(this.operations);
  readonly resources = new FakeResources();
  readonly templates = new FakeTemplates();
  readonly network: NetworkWorld;
  readonly events = new EventBus(this.store);
  /** Null: the dataplane tells no flows. */
  readonly flows: FakeFlows | null;
  readonly audit: AuditEntry[] = [];
  readonly logged: { readonly level: string; readonly fields: Record<string, unknown>; readonly message: string }[] =
    [];
  authDenials = 0;
  checks: readonly ReadinessCheck[] = [{ name: "state", ok: true }];
  readonly log = this.#logger();
  readonly http: HttpApp;

  constructor(options: HarnessOptions = {}) {
    const { listen = "127.0.0.1:0", auth = {}, tls = {}, core = this } = options;
    this.network = options.network ?? new NetworkWorld();
    this.flows = options.hasFlows === false ? null : new FakeFlows();
    this.http = createApp(this.#dependencies(configSchema.parse({ listen, auth, tls }), core));
  }

  /** Calls the application without a socket. */
  async call(method: string, path: string, options: CallOptions = {}): Promise<Answer> {
    const headers = new Headers(options.headers);
    if (options.token !== undefined) headers.set("authorization", `Bearer ${options.token}`);
    if (options.json !== undefined && !headers.has("content-type")) headers.set("content-type", "application/json");
    const raw = options.raw ?? (options.json === undefined ? undefined : JSON.stringify(options.json));
    // As bytes, because a string would bring its own content type.
    const body = raw === undefined ? undefined : Buffer.from(raw as string);
    const request = new Request(`http://127.0.0.1${path}`, { method, headers, body });
    const response = await this.http.app.handle(request);
    const answer = await readAnswer(options.isEndless === true ? await beginning(response) : response);
    checkResponse(this.http.routes, method, path, answer);
    return answer;
  }

  /** A sandbox that exists already, owned by a tenant or by nobody. */
  async sandbox(tenant: string | null = null): Promise<string> {
    const caller = { actor: "test", role: "admin", tenant, token: "test" } as const;
    const { id } = await this.operations.create(caller, { backend: "procbox", backendRequest: {} });
    this.network.add(id, tenant);
    return id;
  }

  #dependencies(
    config: HttpDependencies["config"],
    { operations, store, executions = this.executions, files = this.files }: Core,
  ): HttpDependencies {
    return {
      config,
      version: "0.0.0-test",
      operations,
      executions,
      files,
      ports: this.ports,
      snapshots: this.snapshots,
      consoles: this.consoles,
      pools: this.pools,
      resources: this.resources,
      templates: this.templates,
      network: this.network.services,
      store,
      events: this.events,
      flows: this.flows?.feed ?? null,
      telemetry: {
        log: this.log,
        audit: (line) => this.audit.push(line),
        authDenied: () => {
          this.authDenials += 1;
        },
        answered: () => {},
        metricsText: () => "# TYPE fluxvm_auth_deny_total counter\nfluxvm_auth_deny_total 0\n",
      },
      host: {
        plugins: () => [fakePlugin],
        doctor: async () => [{ id: "kernel", title: "kernel", state: "ok", found: "6.18", remedy: null }],
        readiness: async () => this.checks,
      },
    };
  }

  #logger(): Logger {
    const method = (level: string) => (fields: Record<string, unknown>, message: string) => {
      this.logged.push({ level, fields, message });
    };
    const logger: Logger = {
      debug: method("debug"),
      info: method("info"),
      warn: method("warn"),
      error: method("error"),
      child: () => logger,
    };
    return logger;
  }
}

/** The response with the first piece of its body; its reader leaves then. */
async function beginning(response: Response): Promise<Response> {
  if (!response.ok) return response;
  const reader = response.body!.getReader();
  const { value } = await reader.read();
  await reader.cancel();
  return new Response(value, response);
}

/** Reads a response whole. */
export async function readAnswer(response: Response): Promise<Answer> {
  const text = await response.text();
  const isJson = text !== "" && (response.headers.get("content-type")?.startsWith("application/json") ?? false);
  return { status: response.status, headers: response.headers, text, json: isJson ? JSON.parse(text) : undefined };
}
