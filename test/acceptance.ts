// The behaviours that executions, files, ports and events promise, by the ids under which tests name them, and those
// that nothing can show before a later feature is there. `acceptance.test.ts` holds the tests' names against this list.

/** Id → what holds. */
export const cases: Readonly<Record<string, string>> = {
  "33": "removing an id that nobody has is a 404",

  // Executions.
  "45": "after 8 MiB and 4 bytes of output a reader from 0 begins at offset 4",
  "46": "a reader gets what is kept, stdout first, then what comes, then the end",
  "47": "reading on from where a connection was lost gives the same bytes",
  "48": "input that is sent again is taken once",
  "49": "input that overlaps what was taken adds only what is new",
  "50": "input beyond what was taken is a 416 that says where to go on",
  "51": "closed input takes duplicates and nothing new",
  "52": "a terminal's input has no end",
  "53": "without input a command reads its end at once",
  "54": "what has exited takes no signal, no input and no size",
  "55": "signals are 1 to 64",
  "56": "a signal reaches the whole process group",
  "57": "only terminals have a size",
  "58": "waiting asks at once, waits for its time at most, and is woken by the exit itself",
  "59": "the same id and command is one process, also while it starts",
  "60": "the same id with another command is a conflict, also while it starts",
  "61": "a start that failed leaves its id free",
  "62": "executions run side by side",
  "63": "a timeout ends the whole group, as `timed_out`, or 124 on /process",
  "64": "a stop ends what runs as `sandbox stopped`, and output stays readable",
  "65": "1,000 executions are kept, and the one that ended first goes first",
  "66": "executions are listed by start, then id; of an unknown sandbox none are",
  "67": "a stream has exactly one end, and a sandbox is idle when its last execution ends",
  "68": "waiting for a port touches nobody's connection, and has its time",

  // Files.
  "69": "a written file has 0644, and the parents that were missing",
  "70": "a symbolic link is told with its target, and removing it removes nothing else",
  "71": "what was moved is not where it was",
  "72": "a directory that is not empty needs `recursive`",
  "73": "a directory may be made twice, and has 0755",
  "74": "only directories are listed",
  "75": "streamed writes are bounded by the workspace alone",
  "76": "a watch tells changes, and ends cleanly when the sandbox stops",
  "77": "files are served while commands run",

  // Pausing.
  "84": "what reaches the guest resumes a paused sandbox, unless the caller declines",

  // Events.
  "92": "a follower from the start sees 1 to n without a gap",
  "93": "a follower that is too far behind is told so, and its next number jumps",
  "94": "a new life of the agent counts from 1 again",

  // Commands that broke other systems.
  A1: "a character that is written in pieces arrives whole",
  A2: "wide lines of box characters come through a terminal whole",
  A4: "a waiter hears of an exit without output at once",
  A5: "an unknown program is 127 with its name",
  A6: "the two outputs are kept apart",
  A9: "a client that leaves ends no command",
  A10: "what reads its input for ever ends with its time",
  A11: "a stream that is cut is no end, and goes on without loss or repetition",
  A14: "each of twenty callers gets its own exit code, and status answers meanwhile",
  A16: "59 variables arrive exactly, whatever is in them, given to a command or to the whole sandbox",
  A17: "a command of 300 KiB runs, one that is too long is refused before anything starts",
  A20: "an exit is told at once although something holds the output open",

  // Machines: snapshots, pauses, names.
  E1: "a machine that was put back knows the time at once, and its other clock never goes back",
  E5: "what read over the host when a snapshot was taken comes to its end, and listeners go on",
  E7: "what was written is there after every pause",
  E11: "what was written is there after a stop at once",
  E13: "a snapshot of a machine that writes is of one instant",
  F2: "long names and directories work, or are refused clearly, and sockets fit",
};

export interface PendingCase {
  readonly id: string;
  /** What of the case no test can show, and what it waits for. */
  readonly waitsFor: string;
}

/** Cases of which a part cannot be shown by any backend that there is; named at the end of a run, and not counted. */
export const pending: readonly PendingCase[] = [];
