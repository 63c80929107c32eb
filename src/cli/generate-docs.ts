// Writes the documentation that is made from tables in the source. Tests compare the files with the tables.
import { configurationReference } from "../config/render.ts";

await Bun.write(new URL("../../docs/configuration.md", import.meta.url), configurationReference());
