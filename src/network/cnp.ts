// Network policy documents of Kubernetes with Cilium, imported as groups. A group allows each of its destinations on each
// of its ports, so a document is taken only where its rules say no less; everything that would be left out, would be
// widened, or is not known is an error that names the field.
import { z } from "zod";
import type { JsonObject } from "../contracts/json.ts";
import { limits } from "../config/limits.ts";
import { formatCidr } from "./cidr.ts";
import { entityOf, entityRanges } from "./entities.ts";
import { type NetworkGroup, parseGroup } from "./groups.ts";
import { GROUP_NAME, invalid, parseWith } from "./policy.ts";

/** Of the group that a document becomes. */
const PRIORITY = 50;
const RANGE_SPAN_MAX = 256;
const PORT_MAX = 65_535;
const EVERYWHERE = ["0.0.0.0/0", "::/0"] as const;

const NAMED_PORTS: Readonly<Record<string, number>> = {
  http: 80,
  https: 443,
  dns: 53,
  ssh: 22,
  smtp: 25,
  ntp: 123,
  ldap: 389,
  ldaps: 636,
  mysql: 3306,
  postgres: 5432,
  postgresql: 5432,
  redis: 6379,
  "kube-apiserver": 6443,
};

const texts = z.array(z.string().max(1024)).max(limits.policyListMax).default([]);
const portSchema = z.strictObject({
  port: z.union([z.string().max(64), z.int()]).optional(),
  protocol: z.string().max(16).optional(),
});
const denySchema = z.strictObject({
  toCIDR: texts,
  toCIDRSet: z
    .array(z.strictObject({ cidr: z.string().max(64), except: texts }))
    .max(limits.policyListMax)
    .default([]),
  toEntities: texts,
});
const ruleSchema = denySchema.extend({
  toFQDNs: z
    .array(z.strictObject({ matchName: z.string().max(255).optional(), matchPattern: z.string().max(255).optional() }))
    .max(limits.policyNamesMax)
    .default([]),
  toPorts: z
    .array(z.strictObject({ ports: z.array(portSchema).min(1).max(limits.policyPortsMax) }))
    .max(limits.policyPortsMax)
    .default([]),
});
const rules = <Rule extends z.ZodType>(rule: Rule) => z.array(rule).max(limits.policyListMax).default([]);
const ingress = (what: string) =>
  z.array(z.unknown()).max(0, `${what} is not enforced: only what leaves a sandbox is decided`).optional();

const documentSchema = z.strictObject({
  apiVersion: z.literal("cilium.io/v2").optional(),
  kind: z.enum(["CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"]),
  metadata: z.looseObject({ name: z.string().regex(GROUP_NAME, "must be 1 to 64 of A-Z, a-z, 0-9, _ and -") }),
  spec: z.strictObject({
    endpointSelector: z.strictObject({
      matchLabels: z.record(z.string(), z.string()).refine((labels) => Object.keys(labels).length > 0, {
        message: "must name a label: a group without labels would apply to nobody",
      }),
    }),
    egress: rules(ruleSchema),
    egressDeny: rules(denySchema),
    ingress: ingress("ingress"),
    ingressDeny: ingress("ingress"),
    enableDefaultDeny: z
      .strictObject({
        egress: z.boolean().optional(),
        ingress: z.literal(false, "is not enforced: only what leaves a sandbox is decided").optional(),
      })
      .default({}),
    auditMode: z.boolean().default(false),
    description: z.string().max(1024).optional(),
  }),
});

type Rule = z.output<typeof ruleSchema>;

/** What one rule allows; null means any. */
interface Allowed {
  readonly destinations: { readonly cidrs: readonly string[]; readonly names: readonly string[] } | null;
  readonly entities: readonly string[];
  readonly ports: readonly string[] | null;
}

/** A document that was taken, and the group that it is. */
export interface NetworkDocument {
  readonly document: JsonObject;
  readonly group: NetworkGroup;
}

/** Throws `POLICY_INVALID`. */
export function parseDocument(value: unknown, others: readonly NetworkGroup[]): NetworkDocument {
  const { metadata, spec } = parseWith(documentSchema, value);
  const allowed = spec.egress.flatMap((rule, at) => allowedBy(rule, `spec.egress[${at}]`));
  const group = parseGroup(
    {
      name: metadata.name,
      labels: Object.entries(spec.endpointSelector.matchLabels).map(([key, text]) => `${key}=${text}`),
      priority: PRIORITY,
      description: spec.description ?? null,
      policy: {
        default_allow: !(spec.enableDefaultDeny.egress ?? true),
        ...together(allowed),
        deny_cidrs: [
          ...spec.egressDeny.flatMap((rule, at) => deniedBy(rule, `spec.egressDeny[${at}]`)),
          ...spec.egress.flatMap((rule) => rule.toCIDRSet.flatMap(({ except }) => except)),
        ],
        audit_mode: spec.auditMode,
      },
    },
    others,
  );
  return { document: value as JsonObject, group };
}

/** An empty rule selects nothing; one with ports alone is about every destination. */
function allowedBy(rule: Rule, field: string): Allowed[] {
  const cidrs = [...rule.toCIDR, ...rule.toCIDRSet.map(({ cidr }) => cidr)];
  const names = rule.toFQDNs.map(({ matchName, matchPattern }, at) => {
    const name = matchName ?? matchPattern;
    if (name === undefined || (matchName !== undefined && matchPattern !== undefined)) {
      throw invalid(`${field}.toFQDNs[${at}]`, "must have either matchName or matchPattern");
    }
    return name;
  });
  const entities = rule.toEntities.map((word, at) => knownEntity(word, `${field}.toEntities[${at}]`));
  const isAnywhere = cidrs.length + names.length + entities.length === 0;
  if (isAnywhere && rule.toPorts.length === 0) return [];
  const ports = rule.toPorts.flatMap((entry, at) =>
    entry.ports.flatMap((port, index) => portsOf(port, `${field}.toPorts[${at}].ports[${index}]`)),
  );
  const destinations = isAnywhere ? null : { cidrs, names };
  return [{ destinations, entities, ports: rule.toPorts.length === 0 ? null : [...new Set(ports)].sort() }];
}

/** Several rules as one: exact where all have the same ports, or all the same destinations. */
function together(allowed: readonly Allowed[]) {
  const [first] = allowed;
  if (first === undefined) return {};
  const key = (value: unknown): string => JSON.stringify(value);
  const samePorts = allowed.every(({ ports }) => key(ports) === key(first.ports));
  const sameDestinations = allowed.every(
    ({ destinations, entities }) => key([destinations, entities]) === key([first.destinations, first.entities]),
  );
  if (!samePorts && !sameDestinations) {
    throw invalid("spec.egress", "a group allows all its ports on all its destinations, and these rules do not");
  }
  const anyPort = allowed.some(({ ports }) => ports === null);
  const anywhere = allowed.some(({ destinations }) => destinations === null);
  return {
    allow_cidrs: anywhere ? EVERYWHERE : allowed.flatMap(({ destinations }) => destinations?.cidrs ?? []),
    allow_fqdns: anywhere ? [] : allowed.flatMap(({ destinations }) => destinations?.names ?? []),
    entities: anywhere ? [] : allowed.flatMap(({ entities }) => entities),
    allow_ports: anyPort ? [] : allowed.flatMap(({ ports }) => ports ?? []),
  };
}

function deniedBy(rule: z.output<typeof denySchema>, field: string): readonly string[] {
  const excepted = rule.toCIDRSet.findIndex(({ except }) => except.length > 0);
  if (excepted >= 0) throw invalid(`${field}.toCIDRSet[${excepted}].except`, "a denied range has no exceptions here");
  const entities = rule.toEntities.flatMap((word, at) => {
    const name = `${field}.toEntities[${at}]`;
    const ranges = entityRanges(knownEntity(word, name)).map(formatCidr);
    if (ranges.length === 0) throw invalid(name, "has no addresses, so denying it would deny nothing");
    return ranges;
  });
  return [...rule.toCIDR, ...rule.toCIDRSet.map(({ cidr }) => cidr), ...entities];
}

function knownEntity(word: string, field: string): string {
  const entity = entityOf(word);
  if (entity === null) throw invalid(field, "must be an entity, such as world or host");
  return entity;
}

function portsOf({ port, protocol = "" }: z.output<typeof portSchema>, field: string): readonly string[] {
  const lower = protocol.toLowerCase();
  const word = ["", "any", "tcp"].includes(lower) ? "tcp" : lower.replace("icmpv6", "icmp6");
  if (word === "icmp" || word === "icmp6") return [`${word}/0`];
  if (!["tcp", "udp", "sctp"].includes(word)) throw invalid(`${field}.protocol`, "must be TCP, UDP, SCTP or ICMP");
  const text = String(port ?? "").toLowerCase();
  if (Object.hasOwn(NAMED_PORTS, text)) return [`${word}/${NAMED_PORTS[text]}`];
  const range = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(text);
  const from = Number(range?.[1]);
  const to = Number(range?.[2] ?? from);
  if (range === null || from < 1 || to > PORT_MAX || to < from) {
    throw invalid(`${field}.port`, "must be a port, a range such as 8000-8010, or a known service");
  }
  if (to - from > RANGE_SPAN_MAX) throw invalid(`${field}.port`, `a range spans at most ${RANGE_SPAN_MAX} ports`);
  return Array.from({ length: to - from + 1 }, (_, at) => `${word}/${from + at}`);
}
