// Programs of `native/bpf` in the kernel beside a model of their decisions: random packets under random policies that
// change, with the clock in the test's hand, so that a seed tells the same story again. `FLUXVM_TEST_SEED` starts
// elsewhere. And what the verifier thinks of the programs.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { BpfObject } from "../../ffi/libbpf/objects.ts";
import { GUARD_MAPS, TRAFFIC_MAPS } from "../../ffi/layout/bpf.ts";
import { Comparison, PACKETS_IN_STORY } from "../harness/packets/compare.ts";
import { loadGuard, TrafficPrograms } from "../harness/packets/programs.ts";

const FULL = process.env["FLUXVM_TEST_FULL"] === "1";
const PACKETS = FULL ? 1_000_000 : 50_000;
const SEED = Number(process.env["FLUXVM_TEST_SEED"] ?? 1);
const VERIFIER_BUDGET = 1_000_000;

setDefaultTimeout(FULL ? 1_800_000 : 120_000);

let traffic: TrafficPrograms;

beforeAll(async () => {
  traffic = await TrafficPrograms.load();
});

afterAll(async () => {
  await traffic[Symbol.asyncDispose]();
});

test(`the kernel and the model agree on ${PACKETS} packets`, async () => {
  const comparison = await Comparison.open(traffic);
  try {
    for (let story = 0; story < PACKETS / PACKETS_IN_STORY; story++) {
      const difference = await comparison.story(SEED + story);
      if (difference !== null) throw new Error(difference);
    }
  } finally {
    comparison.close();
  }
});

test("the verifier needs less than half of its budget", async () => {
  await using guard = await loadGuard();

  for (const program of [...traffic.object.programs.values(), ...guard.programs.values()]) {
    const { name, verifiedInstructions } = program.facts();
    expect({ name, isCheap: verifiedInstructions < VERIFIER_BUDGET / 2 }).toEqual({ name, isCheap: true });
    expect(verifiedInstructions).toBeGreaterThan(0);
  }
  const shapes = (object: BpfObject) =>
    Object.fromEntries(
      [...object.maps].map(([name, { facts }]) => [name, { keyBytes: facts.keyBytes, valueBytes: facts.valueBytes }]),
    );
  const declared = (maps: Readonly<Record<string, { keyBytes: number; valueBytes: number }>>) =>
    Object.fromEntries(
      Object.entries(maps).map(([name, { keyBytes, valueBytes }]) => [name, { keyBytes, valueBytes }]),
    );
  expect(shapes(traffic.object)).toMatchObject(declared(TRAFFIC_MAPS));
  expect(shapes(guard)).toMatchObject(declared(GUARD_MAPS));
});
