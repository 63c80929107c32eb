// The network of a request for a virtual machine, whatever runs it: what may be said together, and what is meant by what is
// left out.
import { z } from "zod";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { NetworkWish } from "../../src/contracts/network.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const MODES = ["none", "user", "tap", "macvtap"] as const;
type Mode = (typeof MODES)[number];
const QUEUES_MAX = 8;

const interfaceName = z
  .string()
  .regex(/^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,14}$/, "the name of a network interface")
  .nullish();
const port = z.int().min(1).max(65_535);

/** The field `network` of a request. */
export const networkField = z.looseObject({
  mode: z.enum(MODES).default("none"),
  netns: z.boolean().nullish(),
  bridge: interfaceName,
  tap: interfaceName,
  /** No address of a group. */
  mac: z
    .string()
    .regex(/^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$/i, "an address such as 02:00:00:00:00:01")
    .nullish(),
  /** Of the tap device, which then is made for several. */
  queues: z.int().min(1).max(QUEUES_MAX).nullish(),
  forwards: z
    .array(z.strictObject({ protocol: z.enum(["tcp", "udp"]).default("tcp"), host_port: port, guest_port: port }))
    .max(64)
    .nullish(),
});

/** What an operator says about networks of machines. */
export const networkOptions = {
  /** Of machines that want no namespace and name no bridge. */
  default_bridge: z.string().default("vmbr0"),
  /** Empty: all. */
  allowed_network_modes: z.array(z.string()).default([]),
};
export type NetworkOptions = z.infer<z.ZodObject<typeof networkOptions>>;

/** As it goes into the record. */
export interface MachineNetwork extends JsonObject {
  readonly mode: Mode;
  readonly netns: boolean;
  readonly bridge: string | null;
  readonly tap: string | null;
  /** Lower case. */
  readonly mac: string | null;
  readonly queues: number;
  readonly forwards: { protocol: "tcp" | "udp"; host_port: number; guest_port: number }[];
}

/** `modes`: those that the backend has. Rejects with `BAD_REQUEST`, or `NOT_SUPPORTED` for a mode that it has not. */
export function machineNetwork(
  asked: z.infer<typeof networkField> | null | undefined,
  modes: readonly Mode[],
  options: NetworkOptions,
): MachineNetwork {
  const mode = asked?.mode ?? "none";
  if (!modes.includes(mode)) throw new AgentError("NOT_SUPPORTED", `this backend has no network mode ${mode}`);
  const { allowed_network_modes: allowed, default_bridge: defaultBridge } = options;
  if (allowed.length > 0 && !allowed.includes(mode)) {
    throw refusal(`mode: this host allows ${allowed.join(", ")} only (policy.allowed_network_modes)`);
  }
  const wish = {
    bridge: asked?.bridge ?? null,
    tap: asked?.tap ?? null,
    mac: asked?.mac?.toLowerCase() ?? null,
    queues: asked?.queues ?? 1,
    forwards: asked?.forwards ?? [],
  };
  const said = { ...wish, netns: asked?.netns ?? null };
  const wrong = complaint(mode, said);
  if (wrong !== null) throw refusal(wrong);
  const netns = mode === "tap" && (said.netns ?? (wish.bridge === null && wish.tap === null));
  const isOnBridge = mode === "tap" && !netns && wish.tap === null;
  return { mode, netns, ...wish, bridge: isOnBridge ? (wish.bridge ?? defaultBridge) : wish.bridge };
}

/** What a plan says of it. */
export function networkWish({ mode, netns, bridge, tap, mac, queues }: MachineNetwork): NetworkWish {
  return { mode, guest: "machine", netns, bridge, tap, mac, queues };
}

/** The leases that a machine with it has. */
export function networkLeases({ netns }: MachineNetwork): "address"[] {
  return netns ? ["address"] : [];
}

type Said = Pick<MachineNetwork, "bridge" | "tap" | "mac" | "queues" | "forwards"> & { readonly netns: boolean | null };

/** Null: it makes sense. */
function complaint(mode: Mode, said: Said): string | null {
  const named = (["netns", "bridge", "tap", "mac"] as const).filter(
    (name) => said[name] !== null && said[name] !== false,
  );
  const fields = [...named, ...(said.queues > 1 ? ["queues"] : []), ...(said.forwards.length > 0 ? ["forwards"] : [])];
  const allowed = FIELDS[mode];
  const stray = fields.filter((name) => !allowed.includes(name));
  if (stray.length > 0) return `${stray.join(", ")}: goes with no network of mode ${mode}`;
  if (mode === "macvtap" && said.bridge === null) return "bridge: a macvtap lies on an interface, which it names";
  if (mode !== "tap") return null;
  if (said.tap !== null && said.bridge !== null) return "bridge: a tap device that is there is on one already";
  if (said.netns === true && (said.tap ?? said.bridge) !== null) {
    return "netns: a namespace of its own has no interface of an operator";
  }
  return null;
}

const FIELDS: Readonly<Record<Mode, readonly string[]>> = {
  none: [],
  user: ["mac", "forwards"],
  tap: ["netns", "bridge", "tap", "mac", "queues"],
  macvtap: ["bridge", "mac", "queues"],
};

const refusal = (reason: string): AgentError => new AgentError("BAD_REQUEST", `network.${reason}`);
