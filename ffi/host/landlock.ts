// Which Landlock this kernel speaks.
import { hostLibrary } from "../library.ts";
import { check } from "../status.ts";

/** The Landlock ABI version; 0 when the kernel has none or it is switched off at boot. */
export function landlockAbi(): number {
  return check(hostLibrary().fluxvm_host_landlock_abi(), "query Landlock");
}
