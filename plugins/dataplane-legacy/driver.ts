// Dataplane `legacy`: one nftables table a sandbox, replaced in one step. It says nothing about packets and has no limits,
// names or audit; what it cannot enforce it refuses. The tables are the only state: what is attached is read from them.
import { createHash } from "node:crypto";
import {
  DETACHED,
  type Attachment,
  type AttachRequest,
  type Dataplane,
  type DataplaneHealth,
  type RepairReport,
} from "../../src/contracts/dataplane.ts";
import type { SandboxNetwork } from "../../src/contracts/network.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import type { PluginContext } from "../../src/contracts/plugin.ts";
import type { Resource, ResourceScope } from "../../src/contracts/resource.ts";
import { AgentError, asAgentError } from "../../src/errors/agent-error.ts";
import { applyNft, hasNft, type NftFamily, nftTable, nftTables, removeNftTable } from "../host/nft.ts";
import { commentOf, decides, familyOf, sandboxOfTable, tableName, tableScript } from "./table.ts";

const KIND = "legacy-table";
const OWNER_CHARS = 12;
const LISTED_FOR_MS = 2_000;
/** The kernel takes nearly any character in a name, and nft takes some of them for its own. */
const INTERFACE_NAME = /^[A-Za-z0-9_.-]{1,15}$/;

export async function createDriver({ host }: Pick<PluginContext<object>, "host">): Promise<Dataplane> {
  // Several agents may share a host: each removes only tables that are its own.
  const owner = createHash("sha256").update(host.stateDir).digest("hex").slice(0, OWNER_CHARS);
  return new LegacyDataplane(`fluxvm ${owner}`);
}

class LegacyDataplane implements Dataplane {
  readonly releases = { [KIND]: (resource: Resource) => this.#release(resource) };
  /** Of sandboxes that have an interface. */
  readonly #networks = new Map<string, SandboxNetwork>();
  #listed: { readonly atMs: number; readonly tables: ReturnType<typeof nftTables> } | null = null;

  constructor(private readonly owner: string) {}

  async attach({ sandboxId, network, policy }: AttachRequest, resources: ResourceScope): Promise<void> {
    if (network === null) return;
    check(network, policy);
    const data = { family: familyOf(network) };
    await resources.acquire({ kind: KIND, name: tableName(sandboxId), data }, () =>
      this.#apply(sandboxId, network, policy),
    );
  }

  async setPolicy(sandboxId: string, policy: EffectivePolicy): Promise<void> {
    const network = this.#networks.get(sandboxId);
    if (network === undefined) return;
    check(network, policy);
    await this.#apply(sandboxId, network, policy);
  }

  async attachment(sandboxId: string): Promise<Attachment> {
    for (const family of ["inet", "bridge"] as const) {
      const found = await this.#commentOf(family, tableName(sandboxId));
      if (found === null) continue;
      const [hostInterface = "", policyFingerprint = ""] = found.slice(this.owner.length + 1).split(" ");
      return { ...DETACHED, attached: true, interface: hostInterface, policyFingerprint, method: "nft" };
    }
    return DETACHED;
  }

  async mend({ sandboxId, network, policy }: AttachRequest): Promise<boolean> {
    if (network === null) return false;
    const family = familyOf(network);
    const name = tableName(sandboxId);
    const isThere = (await this.#tables()).some((table) => table.family === family && table.name === name);
    if (isThere) return false;
    check(network, policy);
    await this.#apply(sandboxId, network, policy);
    return true;
  }

  async repair(expected: readonly AttachRequest[]): Promise<RepairReport> {
    const report = { intact: [] as string[], repaired: [] as string[], failed: [] as RepairReport["failed"][number][] };
    for (const { sandboxId, network, policy } of expected) {
      if (network === null) continue;
      try {
        const comment = await this.#commentOf(familyOf(network), tableName(sandboxId));
        if (comment === commentOf(this.owner, network, policy)) {
          this.#networks.set(sandboxId, network);
          report.intact.push(sandboxId);
          continue;
        }
        check(network, policy);
        await this.#apply(sandboxId, network, policy);
        report.repaired.push(sandboxId);
      } catch (error) {
        report.failed.push({ sandboxId, reason: asAgentError(error).message });
      }
    }
    return { ...report, orphans: await this.#removeOrphans(new Set(expected.map(({ sandboxId }) => sandboxId))) };
  }

  async health(): Promise<DataplaneHealth> {
    const notes = hasNft() ? [] : ["nft is not installed: install the package nftables"];
    return { bpfObject: null, notes };
  }

  async #apply(sandboxId: string, network: SandboxNetwork, policy: EffectivePolicy): Promise<void> {
    this.#listed = null;
    const script = tableScript(sandboxId, network, policy, commentOf(this.owner, network, policy));
    try {
      await applyNft(script);
    } catch (cause) {
      const error = asAgentError(cause);
      // What a kernel may lack: everything else that such a table uses is in each that nft runs on.
      if (network.hook !== "bridged" || !decides(policy) || error.code !== "NETWORK_FAILED") throw error;
      throw new AgentError(
        "CAPABILITY_MISSING",
        `nftables cannot follow the connections of a guest on a bridge here (nf_conntrack_bridge): ${error.message}`,
        { details: { capability: "nf_conntrack_bridge" }, cause },
      );
    }
    this.#networks.set(sandboxId, network);
  }

  /** Every table of the host, as it was a moment ago: whoever looks after many sandboxes asks for each. */
  #tables(): ReturnType<typeof nftTables> {
    const now = performance.now();
    if (this.#listed === null || now - this.#listed.atMs > LISTED_FOR_MS) {
      this.#listed = { atMs: now, tables: nftTables() };
      this.#listed.tables.catch(() => {
        this.#listed = null;
      });
    }
    return this.#listed.tables;
  }

  /** The name is one sandbox's alone, so what has it is what was recorded. */
  async #release({ name, data }: Resource): Promise<void> {
    await removeNftTable(data.family === "bridge" ? "bridge" : "inet", name);
    this.#networks.delete(sandboxOfTable(name) ?? "");
  }

  /** What the first rule of a table of ours says; null where there is none. */
  async #commentOf(family: NftFamily, name: string): Promise<string | null> {
    const table = await nftTable(family, name);
    const comments = table?.rules.map(({ comment }) => comment) ?? [];
    return comments.find((comment) => comment?.startsWith(`${this.owner} `) === true) ?? null;
  }

  async #removeOrphans(wanted: ReadonlySet<string>): Promise<number> {
    let removed = 0;
    for (const { family, name } of await nftTables()) {
      const sandboxId = sandboxOfTable(name);
      if (sandboxId === null || wanted.has(sandboxId) || !isOurs(family)) continue;
      if ((await this.#commentOf(family, name)) === null) continue;
      await removeNftTable(family, name);
      removed += 1;
    }
    return removed;
  }
}

/** Rejects with `CAPABILITY_MISSING` what no table can enforce, and with `BAD_REQUEST` what no script can name. */
function check(network: SandboxNetwork, { nativeOnly }: EffectivePolicy): void {
  if (!INTERFACE_NAME.test(network.hostInterface)) {
    throw new AgentError("BAD_REQUEST", `nftables cannot name the interface ${JSON.stringify(network.hostInterface)}`);
  }
  if (network.mode === "macvtap") {
    throw new AgentError("CAPABILITY_MISSING", "nftables sees no packet of a macvtap device; use the dataplane ebpf", {
      details: { capability: "dataplane:ebpf" },
    });
  }
  if (nativeOnly.length === 0) return;
  throw new AgentError(
    "CAPABILITY_MISSING",
    `nftables cannot enforce ${nativeOnly.join(", ")}; use the dataplane ebpf`,
    { details: { capability: "dataplane:ebpf", native_only: [...nativeOnly] } },
  );
}

function isOurs(family: string): family is NftFamily {
  return family === "inet" || family === "bridge";
}
