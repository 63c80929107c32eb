// What a record keeps of a sandbox's network: what was wanted, and what it has while it runs. Read back, it is checked
// against these.
import { z } from "zod";
import type { NetworkWish, SandboxNetwork } from "../contracts/network.ts";

const text = z.string().max(4096);
const optionalText = text.nullable();

export const networkWishSchema: z.ZodType<NetworkWish> = z.object({
  mode: z.enum(["none", "user", "host", "tap", "macvtap"]),
  guest: z.enum(["machine", "process"]),
  netns: z.boolean(),
  bridge: optionalText,
  tap: optionalText,
  mac: optionalText,
  queues: z.int().min(1),
  ports: z.array(z.int()).readonly().optional(),
});

export const sandboxNetworkSchema: z.ZodType<SandboxNetwork> = z.object({
  mode: z.enum(["tap", "macvtap"]),
  hostInterface: text,
  hostInterfaceIndex: z.int().positive(),
  hook: z.enum(["routed", "bridged"]),
  namespace: optionalText,
  tap: optionalText,
  mac: optionalText,
  guestAddress: optionalText,
  innerAddress: optionalText,
  gateway: optionalText,
  prefixLength: z.int().nullable(),
  leaseFile: optionalText,
});
