// Templates in memory.
import { AgentError } from "../../errors/agent-error.ts";
import type { Template } from "../../templates/format.ts";

export class FakeTemplates {
  readonly byName = new Map<string, Template>();
  readonly inUse = new Set<string>();

  async list() {
    return [...this.byName.values()].map(({ name, path }) => ({ name, path, snapshot: false }));
  }

  async delete(name: string): Promise<void> {
    await this.get(name);
    if (this.inUse.has(name))
      throw new AgentError("TEMPLATE_IN_USE", undefined, { details: { dependants: ["sandbox vm"] } });
    this.byName.delete(name);
  }

  async get(name: string): Promise<Template> {
    const template = this.byName.get(name);
    if (template === undefined) throw new AgentError("TEMPLATE_NOT_FOUND", `no template is called ${name}`);
    return template;
  }
}

/** A template of an operator, with the fields of its specification that a test cares for. */
export function fakeTemplate(name: string, spec: Template["spec"] = {}): Template {
  const path = `/templates/${name}`;
  return {
    name,
    path,
    spec: { image: "root.raw", ...spec },
    imagePath: `${path}/root.raw`,
    kernelPath: `${path}/kernel`,
    initrdPath: `${path}/initrd`,
    kernelArgs: "quiet",
    vcpus: null,
    memoryMib: null,
    manifest: null,
  };
}
