// Makes `import … from "fluxvm/plugin"` work in plugin files, both from source and from the compiled program.
import * as pluginApi from "./plugin-api.ts";

export const PLUGIN_MODULE = "fluxvm/plugin";

let provided = false;

/** Registers the module with the runtime's resolver, once a process. */
export function providePluginModule(): void {
  if (provided) return;
  provided = true;
  Bun.plugin({
    name: PLUGIN_MODULE,
    setup(build) {
      build.module(PLUGIN_MODULE, () => ({ exports: { ...pluginApi }, loader: "object" }));
    },
  });
}
