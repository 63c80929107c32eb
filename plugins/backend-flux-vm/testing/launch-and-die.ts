// A program for tests, `launch-and-die.ts ROOT SHORT_NAME UID MOMENT`: launches the machine of a place and is killed, as an
// agent may be, at one moment: the so-manieth step of the journal. Its rows are lines of JSON in ROOT/journal, the last one
// of a name counts. Without such a step it ends with 0, and its machine stays.
import { appendFileSync } from "node:fs";
import { join } from "node:path";
import type { Resource, ResourceScope } from "../../../src/contracts/resource.ts";
import { makePlace } from "./place.ts";

const [root = "", shortName = "", uid = "", moment = ""] = process.argv.slice(2);
let steps = 0;

function step(): void {
  steps += 1;
  if (steps === Number(moment)) process.kill(process.pid, "SIGKILL");
}

function write(row: Resource | { kind: string; name: string; data: null }): void {
  appendFileSync(join(root, "journal"), `${JSON.stringify(row)}\n`);
  step();
}

const { backend, request } = await makePlace(root, shortName, uid === "" ? null : Number(uid));
const held = new Map<string, Resource>();
const resources: ResourceScope = {
  acquire: async (resource, make) => {
    held.set(resource.kind, resource);
    write(resource);
    const made = await make();
    step();
    return made;
  },
  update: async (kind, name, data) => {
    held.set(kind, { kind, name, data });
    write({ kind, name, data });
  },
  release: async (kind, name) => {
    const row = held.get(kind);
    if (row !== undefined) await backend.releases[kind]?.(row);
    step();
    write({ kind, name, data: null });
  },
  held: () => [...held.values()],
};
const machine = await backend.launch({ ...request, resources });
await machine.detach();
process.exit(0);
