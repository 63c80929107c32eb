// What this host gives QEMU: the programs, their version, and whether KVM runs a guest at speed, with a remedy for each
// gap. Emulation always works; it is slow.
import type { HostFacts, MissingCapability, ProbeReport } from "../../src/contracts/plugin.ts";
import { kvmGap } from "../host/kvm.ts";
import { fileServerGap, findFileServer } from "./file-server.ts";
import { VSOCK_REMEDY, vsockGap } from "./channel.ts";
import type { QemuOptions } from "./options.ts";

const VERSION_MIN = { major: 7, minor: 2 };
const WITHOUT_ROOT = "the agent is not root";

export interface QemuHost {
  /** Absolute paths. */
  readonly qemu: string;
  readonly qemuImg: string;
  readonly accel: "kvm" | "tcg";
  /** Why KVM is not used, or null. */
  readonly withoutKvm: string | null;
  /** Why vsock cannot be used, or null. */
  readonly withoutVsock: string | null;
}

export async function probe(host: HostFacts, options: QemuOptions): Promise<ProbeReport> {
  const missing: MissingCapability[] = [];
  if (host.guestAgentPath === null) {
    missing.push({
      capability: "guest_agent",
      reason: "this build has no guest agent for this machine",
      remedy: "build with `./run build`",
    });
  }
  for (const program of [options.qemu_binary, options.qemu_img_binary]) {
    if (Bun.which(program) === null) missing.push(absent(program));
  }
  if (missing.length > 0) return { usable: false, capabilities: [], missing };
  const version = await versionOf(options.qemu_binary);
  if (version === null || !isRecent(version)) {
    const found = version === null ? "tells no version" : `is ${version.major}.${version.minor}`;
    missing.push({
      capability: "qemu_version",
      reason: `${options.qemu_binary} ${found}`,
      remedy: `install QEMU ${VERSION_MIN.major}.${VERSION_MIN.minor} or later`,
    });
    return { usable: false, capabilities: [], missing };
  }
  const withoutKvm = await kvmGap();
  if (withoutKvm !== null) missing.push({ capability: "kvm", ...withoutKvm });
  // Ids of machines are the whole host's, and only root claims those.
  const withoutVsock = host.uid === 0 ? await vsockGap() : WITHOUT_ROOT;
  if (withoutVsock !== null && host.uid === 0) {
    missing.push({ capability: "vsock", reason: withoutVsock, remedy: VSOCK_REMEDY });
  }
  const sharesFolders = host.uid === 0 && (await findFileServer(options.virtiofsd_binary)) !== null;
  if (host.uid === 0 && !sharesFolders) missing.push(fileServerGap(options.virtiofsd_binary));
  return {
    // An operator who wants KVM and nothing else gets no slow sandboxes.
    usable: withoutKvm === null || options.accel !== "kvm",
    capabilities: [
      withoutKvm === null ? "kvm" : "emulation",
      ...(withoutVsock === null ? ["vsock"] : []),
      ...(sharesFolders ? ["shared_folders"] : []),
    ],
    missing,
  };
}

/** The programs and the acceleration that `options` and the probe's report come to. */
export function qemuHost(options: QemuOptions, report: ProbeReport): QemuHost {
  const hasKvm = report.capabilities.includes("kvm");
  const gapOf = (name: string) => report.missing.find(({ capability }) => capability === name)?.reason ?? null;
  return {
    qemu: Bun.which(options.qemu_binary) ?? options.qemu_binary,
    qemuImg: Bun.which(options.qemu_img_binary) ?? options.qemu_img_binary,
    accel: hasKvm && options.accel !== "tcg" ? "kvm" : "tcg",
    withoutKvm: hasKvm && options.accel === "tcg" ? "the configuration asks for emulation" : gapOf("kvm"),
    withoutVsock: report.capabilities.includes("vsock") ? null : (gapOf("vsock") ?? WITHOUT_ROOT),
  };
}

function absent(program: string): MissingCapability {
  const name = program.includes("img") ? "qemu-utils" : "qemu-system-x86";
  return { capability: "qemu", reason: `there is no ${program}`, remedy: `install it (Debian: ${name})` };
}

async function versionOf(program: string): Promise<{ major: number; minor: number } | null> {
  const child = Bun.spawn([program, "--version"], { stdin: "ignore", stdout: "pipe", stderr: "ignore", env: {} });
  const found = /version (\d+)\.(\d+)/.exec(await new Response(child.stdout).text());
  return found === null ? null : { major: Number(found[1]), minor: Number(found[2]) };
}

function isRecent({ major, minor }: { major: number; minor: number }): boolean {
  return major > VERSION_MIN.major || (major === VERSION_MIN.major && minor >= VERSION_MIN.minor);
}
