// The single description of what crosses between TypeScript and the engine library: what starting a machine gives, and
// the record by which a native thread tells about it later. `generate.ts` writes both sides from it.

/** The bytes of one record; what is not used of its text is zero. */
export const RECORD_BYTES = 1024;

/** Fields at the head of a record, packed in this order, little-endian; UTF-8 text of `text_bytes` follows. */
export const recordFields = [
  { name: "kind", type: "u32", about: "What is told: a number of `RecordKind`." },
  { name: "status", type: "i32", about: "Of `started`: 0 or a negative errno. Of `ended`: a number of `EndReason`." },
  { name: "text_bytes", type: "u32", about: "How many bytes of text follow." },
  { name: "reserved", type: "u32", about: "Zero." },
] as const;

/** What is told, numbered in this order. Of a machine that failed to start `started` is the last word, else `ended`. */
export const recordKinds = [
  { name: "started", about: "The machine runs, or could not be made; the text says why not." },
  { name: "ended", about: "The machine and all its threads are gone; the text says how." },
] as const;

/** How a machine ended, numbered in this order. */
export const endReasons = [
  { name: "power_off", about: "The guest turned itself off." },
  { name: "reset", about: "The guest asked for a reset." },
  { name: "crash", about: "The guest cannot go on." },
  { name: "stopped", about: "The host ended it." },
  { name: "failed", about: "The engine itself failed." },
] as const;

/** What starting a machine gives: 32-bit numbers in this order. The descriptors are the caller's from then on. */
export const startedWords = [
  { name: "handle", about: "Names the machine in later calls; never used again for another." },
  { name: "control", about: "Descriptor: the machine's control socket." },
  { name: "events", about: "Descriptor: where the records come; it ends with the machine." },
] as const;
