// Writes the documentation that is made from tables in the source. Tests compare the files with the tables.
import { configurationReference } from "../config/render.ts";
import { commands } from "./commands.ts";
import { commandLineReference } from "./reference.ts";

const docs = new URL("../../docs/", import.meta.url);
await Bun.write(new URL("configuration.md", docs), configurationReference());
await Bun.write(new URL("command-line.md", docs), commandLineReference(commands));
