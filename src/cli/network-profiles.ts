// The profiles of `fluxctl network enable`: what each says of the dataplane, as files that are part of the program.
import ga from "../../packaging/network/ga.toml" with { type: "text" };
import lab from "../../packaging/network/lab.toml" with { type: "text" };
import prod from "../../packaging/network/prod.toml" with { type: "text" };

export const PROFILES = ["ga", "prod", "lab"] as const;
export type Profile = (typeof PROFILES)[number];

const TEXTS: Readonly<Record<Profile, string>> = { ga, prod, lab };
const MODE = 'mode = "ebpf"';

/** The profile in TOML, with our programs beside Cilium's where that is asked for. */
export function profileText(profile: Profile, besideCilium: boolean): string {
  const text = TEXTS[profile];
  return besideCilium ? text.replace(MODE, 'mode = "cilium"') : text;
}
