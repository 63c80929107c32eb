// Who calls routes of networks, and whose sandboxes have one.
import { fakeNetwork } from "../../network/testing/world.ts";
import type { Harness } from "./harness.ts";

/** An operator, two tenants, and those who may only look. */
export const TOKENS = {
  tokens: [
    { token: "operator", role: "admin" },
    { token: "reader", role: "read-only" },
    { token: "blue", role: "admin", tenant: "blue" },
    { token: "blue-reader", role: "read-only", tenant: "blue" },
    { token: "red", role: "admin", tenant: "red" },
  ],
};

/** Makes a sandbox with a network; resolves with its id. */
export async function connected(harness: Harness, tenant: string | null = null): Promise<string> {
  const id = await harness.sandbox(tenant);
  await harness.network.connect(id, fakeNetwork(harness.network.sandboxes.size));
  return id;
}
