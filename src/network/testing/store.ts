// What is declared, in memory; the texts of files are kept, so that reading checks them as from a disk.
import type { JsonObject } from "../../contracts/json.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { FabricFile, NetworkStore, SandboxFile } from "../store.ts";

export class MemoryNetworkStore implements Pick<NetworkStore, "read" | "write" | "readOf" | "writeOf" | "ids"> {
  /** By `network-policy/<id>` and `groups`, the text of each. */
  readonly files = new Map<string, string>();
  /** The next so many writes fail, but for those before them that do not. */
  failures = 0;
  successes = 0;

  async read<Value>(name: FabricFile, parse: (value: unknown) => Value): Promise<Value | null> {
    return this.#read(name, parse);
  }

  async write(name: FabricFile, value: object): Promise<void> {
    this.#write(name, value);
  }

  async readOf<Value>(file: SandboxFile, id: string, parse: (value: unknown) => Value): Promise<Value | null> {
    return this.#read(`${file}/${id}`, parse);
  }

  async writeOf(file: SandboxFile, id: string, value: object | null): Promise<void> {
    this.#write(`${file}/${id}`, value);
  }

  async ids(file: SandboxFile): Promise<readonly string[]> {
    return [...this.files.keys()].filter((name) => name.startsWith(`${file}/`)).map((name) => name.split("/")[1]!);
  }

  #read<Value>(name: string, parse: (value: unknown) => Value): Value | null {
    const text = this.files.get(name);
    if (text === undefined) return null;
    try {
      return parse(JSON.parse(text) as JsonObject);
    } catch (cause) {
      throw new AgentError("STATE_UNAVAILABLE", `${name}.json cannot be used`, { cause });
    }
  }

  #write(name: string, value: object | null): void {
    if (this.successes > 0) {
      this.successes -= 1;
    } else if (this.failures > 0) {
      this.failures -= 1;
      throw Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
    }
    if (value === null) this.files.delete(name);
    else this.files.set(name, JSON.stringify(value));
  }
}
