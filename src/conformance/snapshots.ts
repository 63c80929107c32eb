// The part of the backend suite about snapshots: what they hold, that restoring never changes them, and their names.
import type { Instance, Snapshots } from "../contracts/backend.ts";
import type { GuestChannel } from "../contracts/channel.ts";
import { check, equal, rejectsWith } from "./assert.ts";
import { type ConformanceCase, needs } from "./case.ts";
import { type BackendContext, prepare, run, type Station, STOP_BUDGET_MS, withSandbox } from "./station.ts";

const FILE = "snapshot-case";
/** A file in memory: what is in it goes back with the memory and not with the disk. */
const IN_MEMORY = "/dev/shm/snapshot-case";

const write = (channel: GuestChannel, word: string): Promise<string> =>
  run(channel, `echo ${word} > ${FILE}; sync; echo ${word} > ${IN_MEMORY}`);
const words = (channel: GuestChannel): Promise<string> => run(channel, `cat ${FILE} ${IN_MEMORY}`);

export const snapshotCases: readonly ConformanceCase<BackendContext>[] = [
  {
    name: "snapshots: memory and disk go back, as often as asked, and the sandbox goes on",
    async run(context) {
      const { snapshots } = context.backend;
      needs(snapshots !== undefined, "snapshots");
      const station = await prepare(context);
      await withSandbox(station, async ({ channel, instance }) => {
        await write(channel, "before");
        const saved = await snapshots.save(instance, station.volume, "case");
        equal(saved.tag, "case", "the tag of the snapshot");
        check(saved.bytes > 0, "the snapshot holds no memory");
        check(Math.abs(saved.takenAtUnixMs - Date.now()) < 60_000, `it is dated ${saved.takenAtUnixMs}`);
        equal(await words(channel), "before\nbefore\n", "the state after the snapshot");
        await write(channel, "after");
        await putBack(station, snapshots, instance, async (restored) => {
          for (const round of [1, 2]) {
            equal(await words(restored.channel), "before\nbefore\n", `the state after restore ${round}`);
            await write(restored.channel, `again${round}`);
            if (round === 1) await restored.again();
          }
        });
      });
    },
  },
  {
    name: "snapshots: have names, while the sandbox runs, is frozen, and has ended",
    async run(context) {
      const { snapshots, pause } = context.backend;
      needs(snapshots !== undefined, "snapshots");
      const station = await prepare(context);
      const tags = async (instance: Instance | null) =>
        (await snapshots.list(instance, station.volume)).map(({ tag }) => tag);
      await withSandbox(station, async ({ channel, instance }) => {
        await snapshots.save(instance, station.volume, "one");
        await rejectsWith(snapshots.save(instance, station.volume, "one"), ["SNAPSHOT_EXISTS"], "a tag that is taken");
        await pause?.pause(instance);
        await snapshots.save(instance, station.volume, "two");
        await pause?.resume(instance);
        equal(await tags(instance), ["one", "two"], "tags of a running sandbox");
        equal(await run(channel, "echo goes on"), "goes on\n", "the sandbox after its snapshots");
        await snapshots.remove(instance, station.volume, "one");
        await rejectsWith(
          snapshots.remove(instance, station.volume, "one"),
          ["SNAPSHOT_NOT_FOUND"],
          "a tag that is not there",
        );
        await instance.stop(STOP_BUDGET_MS);
        equal(await tags(null), ["two"], "tags of a sandbox that has ended");
        await snapshots.remove(null, station.volume, "two");
        equal(await tags(null), [], "tags after the last was removed");
      });
    },
  },
  {
    name: "snapshots: a launch from one that is not there leaves only rows, which release cleanly",
    async run(context) {
      needs(context.backend.snapshots !== undefined, "snapshots");
      const station = await prepare(context);
      const launching = context.backend.launch({ ...station.request(), restore: "nowhere" });
      await rejectsWith(launching, ["SNAPSHOT_NOT_FOUND"], "a launch from a snapshot that is not there");
      await station.journal.releaseAll();
      await withSandbox(station, async ({ channel }) => {
        equal(await run(channel, "echo plain"), "plain\n", "a plain launch afterwards");
      });
    },
  },
];

/** Restores the snapshot `case` the way the backend does it, runs `use`, and ends what was launched for it. */
async function putBack(
  station: Station,
  snapshots: Snapshots,
  running: Instance,
  use: (restored: { channel: GuestChannel; again: () => Promise<void> }) => Promise<void>,
): Promise<void> {
  let current = running;
  const restored = {
    channel: await running.channel(),
    again: async () => {
      if (snapshots.restores === "in-place" && snapshots.restore !== undefined) {
        await snapshots.restore(current, station.volume, "case");
      } else {
        await current.stop(0);
        await station.journal.releaseAll();
        current = await station.backend.launch({ ...station.request(), restore: "case" });
      }
      restored.channel = await current.channel();
    },
  };
  try {
    await restored.again();
    await use(restored);
  } finally {
    await current.stop(STOP_BUDGET_MS).catch(() => undefined);
  }
}
