// The kinds of value that a configuration key can have. Each carries its description, which is the text of the generated
// file, of `docs/configuration.md` and of error messages; nothing about a key is written twice.
import { z } from "zod";
import { parseCidr } from "../network/cidr.ts";
import { parsePort } from "../network/ports.ts";
import { limits } from "./limits.ts";

const PATH_PATTERN = /^\/[^\0]*$/;
const TCP_PATTERN = /^(?:\[[0-9A-Fa-f:.]+\]:\d{1,5}|[A-Za-z0-9.-]+:\d{1,5})$/;
/** What the program that drops them has room for. */
const BLOCKED_CIDRS_MAX = 4096;
const LISTEN_PATTERN = new RegExp(`^unix:/[^\\0]+$|${TCP_PATTERN.source}`);

/** What a key knows about itself beside its type. `later`: its feature is not in this build. `secret`: never shown. */
export interface KeyMeta {
  readonly description: string;
  readonly later?: true;
  readonly secret?: true;
  /** Replaces the type in messages and documentation where the type alone would say too little. */
  readonly expected?: string;
}

/** Marks a key whose feature this build does not have: any value but the default is refused. */
export function later<T extends z.ZodType>(schema: T): T {
  return schema.meta({ ...schema.meta(), later: true });
}

/** Marks a value that is never printed. */
export function secret<T extends z.ZodType>(schema: T): T {
  return schema.meta({ ...schema.meta(), secret: true });
}

export const text = (description: string) => z.string().min(1).max(4096).meta({ description });

export const optionalText = (description: string) =>
  z.string().max(4096).nullable().default(null).meta({ description });

export const textWithDefault = (value: string, description: string) =>
  z.string().max(4096).default(value).meta({ description });

export const texts = (description: string) => z.array(z.string().min(1).max(4096)).default([]).meta({ description });

const range = z.string().refine((text) => parseCidr(text) !== null, {
  error: 'expected a range such as "10.0.0.0/8" or "fd00::/8"',
});

/** Ranges of addresses, as a policy has them. */
export const cidrs = (description: string) =>
  z.array(range).max(limits.policyListMax).default([]).meta({ description, expected: "a list of address ranges" });

/** Ranges that the host's interface drops. */
export const blockedCidrs = (description: string) =>
  z.array(range).max(BLOCKED_CIDRS_MAX).default([]).meta({ description, expected: "a list of address ranges" });

/** Ports, as a policy has them. */
export const ports = (description: string) =>
  z
    .array(z.string().refine((text) => parsePort(text) !== null, { error: 'expected "tcp/443", "udp/53" or "icmp/0"' }))
    .max(limits.policyPortsMax)
    .default([])
    .meta({ description, expected: 'a list of ports such as "tcp/443"' });

export const path = (value: string, description: string) =>
  z.string().regex(PATH_PATTERN).max(4096).default(value).meta({ description, expected: "an absolute path" });

export const optionalPath = (description: string) =>
  z.string().regex(PATH_PATTERN).max(4096).nullable().default(null).meta({ description, expected: "an absolute path" });

export const paths = (description: string) =>
  z
    .array(z.string().regex(PATH_PATTERN).max(4096))
    .default([])
    .meta({ description, expected: "a list of absolute paths" });

export const listen = (value: string, description: string) =>
  z
    .string()
    .regex(LISTEN_PATTERN)
    .default(value)
    .meta({ description, expected: '"HOST:PORT", "[IPV6]:PORT" or "unix:/PATH"' });

export const optionalListen = (description: string) =>
  z
    .string()
    .regex(TCP_PATTERN)
    .nullable()
    .default(null)
    .meta({ description, expected: '"HOST:PORT" or "[IPV6]:PORT"' });

export const flag = (value: boolean, description: string) => z.boolean().default(value).meta({ description });

export const optionalFlag = (description: string) => z.boolean().nullable().default(null).meta({ description });

/** An integer from `min` to `max`, both included. */
export const integer = (value: number, min: number, max: number, description: string) =>
  z.int().min(min).max(max).default(value).meta({ description });

export const optionalInteger = (min: number, max: number, description: string) =>
  z.int().min(min).max(max).nullable().default(null).meta({ description });

export const optionalNumber = (min: number, max: number, description: string) =>
  z.number().min(min).max(max).nullable().default(null).meta({ description });

export const choice = <const T extends readonly [string, ...string[]]>(
  value: T[number],
  values: T,
  description: string,
) =>
  z
    .enum(values)
    .default(value as never)
    .meta({ description });

export const optionalChoice = <const T extends readonly [string, ...string[]]>(values: T, description: string) =>
  z.enum(values).nullable().default(null).meta({ description });

/** A table whose keys all have defaults, so that the table itself may be missing. */
export const table = <T extends z.ZodRawShape>(description: string, shape: T) =>
  z
    .strictObject(shape)
    .prefault({} as never)
    .meta({ description });

/** An array of tables. */
export const tables = <T extends z.ZodRawShape>(description: string, shape: T) =>
  z.array(z.strictObject(shape)).default([]).meta({ description });
