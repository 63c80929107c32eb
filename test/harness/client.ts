// What tests ask of an agent over HTTP, wherever it runs, and the tokens that test agents know.

export const ADMIN_TOKEN = "test-admin-token-0123456789abcdef";
export const READER_TOKEN = "test-reader-token-0123456789abcdef";
export const TENANT_TOKEN = "test-tenant-token-0123456789abcdef";

export class AgentClient {
  readonly url: string;

  constructor(url: string) {
    this.url = url;
  }

  fetch(method: string, path: string, init: RequestInit & { token?: string | null } = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    const token = init.token === undefined ? ADMIN_TOKEN : init.token;
    if (token !== null && !headers.has("authorization")) headers.set("authorization", `Bearer ${token}`);
    return fetch(`${this.url}${path}`, { ...init, method, headers });
  }

  /** One JSON call; the status is returned, never thrown. */
  async json<T = Record<string, unknown>>(
    method: string,
    path: string,
    body?: unknown,
    init: { token?: string | null; headers?: Record<string, string> } = {},
  ): Promise<{ status: number; body: T; headers: Headers }> {
    const response = await this.fetch(method, path, {
      ...init,
      headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...init.headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, body: (text === "" ? null : JSON.parse(text)) as T, headers: response.headers };
  }
}
