// What this build is.
import manifest from "../../package.json" with { type: "json" };
import { CONTRACT_VERSION } from "../contracts/plugin.ts";

export const VERSION: string = manifest.version;

export interface BuildFacts {
  readonly version: string;
  readonly plugin_contract: number;
  readonly bun: string;
  readonly platform: string;
}

export const buildFacts: BuildFacts = {
  version: VERSION,
  plugin_contract: CONTRACT_VERSION,
  bun: Bun.version,
  platform: `${process.platform}-${process.arch}`,
};
