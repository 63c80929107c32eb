// Routes of templates: what sandboxes may be made from, and its removal.
import { Type } from "@sinclair/typebox";
import type { TemplateInfo } from "../../templates/store.ts";
import { defineRoute, type Route } from "../route.ts";
import { listOf } from "../schema.ts";

const templateSchema = Type.Object(
  {
    name: Type.String(),
    path: Type.String({ description: "Directory of the template on the host." }),
    snapshot: Type.Boolean({ description: "Sandboxes start from a memory image." }),
  },
  { $id: "Template", additionalProperties: false },
);

interface Templates {
  list(): Promise<readonly TemplateInfo[]>;
  delete(name: string): Promise<void>;
}

export function templateRoutes(templates: Templates): readonly Route[] {
  return [
    defineRoute({
      method: "GET",
      path: "/v1/templates",
      auth: "reader",
      guard: "shared",
      tag: "templates",
      summary: "Lists the templates of this host by name.",
      success: { status: 200, schema: listOf(templateSchema) },
      handler: async () => ({
        items: (await templates.list()).map(({ name, path, snapshot }) => ({ name, path, snapshot })),
      }),
    }),
    defineRoute({
      method: "DELETE",
      path: "/v1/templates/:name",
      auth: "admin",
      guard: "host",
      tag: "templates",
      summary: "Deletes a template that no sandbox and no pool needs.",
      success: { status: 204 },
      errors: ["TEMPLATE_NOT_FOUND", "TEMPLATE_INVALID", "TEMPLATE_IN_USE", "TEMPLATE_BUSY"],
      handler: ({ params }) => templates.delete(params.name ?? ""),
    }),
  ];
}
