// The groups of a host and the documents that made some of them. A book never changes: each change is another book, so
// that one which cannot be applied is simply not taken.
import { z } from "zod";
import { limits } from "../config/limits.ts";
import type { JsonObject } from "../contracts/json.ts";
import { AgentError } from "../errors/agent-error.ts";
import { type NetworkDocument, parseDocument } from "./cnp.ts";
import { inOrder, type NetworkGroup, parseGroup } from "./groups.ts";
import { invalid, parseWith } from "./policy.ts";

const listSchema = z.array(z.unknown()).max(limits.networkGroupsMax);

export class GroupBook {
  private constructor(
    /** Those that are made as groups. */
    readonly own: readonly NetworkGroup[],
    /** By the name of their group. */
    readonly documents: ReadonlyMap<string, NetworkDocument>,
  ) {}

  static readonly empty = new GroupBook([], new Map());

  /** From what is stored. Throws `POLICY_INVALID`. */
  static parse(groups: unknown, documents: unknown): GroupBook {
    const withGroups = parseWith(listSchema, groups).reduce<GroupBook>(
      (book, group) => book.withGroup(group).book,
      this.empty,
    );
    return parseWith(listSchema, documents).reduce<GroupBook>((book, text) => book.withDocument(text).book, withGroups);
  }

  /** By priority, then name. */
  all(): readonly NetworkGroup[] {
    return inOrder([...this.own, ...[...this.documents.values()].map(({ group }) => group)]);
  }

  /** Throws `NETWORK_GROUP_NOT_FOUND`. */
  group(name: string): NetworkGroup {
    const found = this.all().find((group) => group.name === name);
    if (found === undefined) throw new AgentError("NETWORK_GROUP_NOT_FOUND");
    return found;
  }

  /** Throws `CNP_NOT_FOUND`. */
  document(name: string): JsonObject {
    const found = this.documents.get(name);
    if (found === undefined) throw new AgentError("CNP_NOT_FOUND");
    return found.document;
  }

  /** One of the same name is replaced, unless a document made it. Throws `POLICY_INVALID`. */
  withGroup(value: unknown): { readonly book: GroupBook; readonly group: NetworkGroup } {
    const group = parseGroup(value, this.all());
    if (this.documents.has(group.name)) throw invalid("name", "a policy document made the group of this name");
    const others = this.own.filter(({ name }) => name !== group.name);
    return { book: new GroupBook([...others, group], this.documents).bounded(), group };
  }

  /** One of the same name is replaced, unless it is a group without a document. Throws `POLICY_INVALID`. */
  withDocument(value: unknown): { readonly book: GroupBook; readonly group: NetworkGroup } {
    const parsed = parseDocument(value, this.all());
    const { name } = parsed.group;
    if (this.own.some((group) => group.name === name)) {
      throw invalid("metadata.name", "there is a group of this name that no document made");
    }
    const documents = new Map(this.documents).set(name, parsed);
    return { book: new GroupBook(this.own, documents).bounded(), group: parsed.group };
  }

  /** With the document that made it. Throws `NETWORK_GROUP_NOT_FOUND`. */
  withoutGroup(name: string): GroupBook {
    this.group(name);
    return this.#without(name);
  }

  /** With the group that it made. Throws `CNP_NOT_FOUND`. */
  withoutDocument(name: string): GroupBook {
    this.document(name);
    return this.#without(name);
  }

  /** Only what had it is another: each is a file, and two files are not replaced at once. */
  #without(name: string): GroupBook {
    const documents = new Map(this.documents);
    if (documents.delete(name)) return new GroupBook(this.own, documents);
    const own = this.own.filter((group) => group.name !== name);
    return new GroupBook(own, this.documents);
  }

  private bounded(): GroupBook {
    if (this.own.length + this.documents.size <= limits.networkGroupsMax) return this;
    throw invalid("name", `a host has at most ${limits.networkGroupsMax} groups`);
  }
}
