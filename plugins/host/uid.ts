// Whether a uid may be given to another sandbox: nobody runs under it and it owns no System V IPC object.
import { readdir, readFile, stat } from "node:fs/promises";

const IPC_TABLES = ["shm", "sem", "msg"] as const;

export async function uidIsClean(uids: readonly number[]): Promise<boolean> {
  return !(await ownsProcess(uids)) && !(await ownsIpc(uids));
}

async function ownsProcess(uids: readonly number[]): Promise<boolean> {
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const status = await readFile(`/proc/${name}/status`, "latin1").catch(() => "");
    // A zombie runs nothing any more; how soon its parent reaps it is not for the next sandbox to wait for.
    if (/^State:\tZ/m.test(status)) continue;
    const real = /^Uid:\t(\d+)/m.exec(status)?.[1];
    if (real !== undefined && uids.includes(Number(real))) return true;
  }
  return false;
}

async function ownsIpc(uids: readonly number[]): Promise<boolean> {
  for (const table of IPC_TABLES) {
    const path = `/proc/sysvipc/${table}`;
    if ((await stat(path).catch(() => null)) === null) continue;
    const [header, ...rows] = (await readFile(path, "latin1")).trim().split("\n");
    const columns = header?.trim().split(/\s+/) ?? [];
    const owners = ["uid", "cuid"].map((column) => columns.indexOf(column)).filter((index) => index >= 0);
    for (const row of rows) {
      const fields = row.trim().split(/\s+/);
      if (owners.some((index) => uids.includes(Number(fields[index])))) return true;
    }
  }
  return false;
}
