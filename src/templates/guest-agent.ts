// How the guest agent lives in a root: as a service where there is systemd, as init where there is not.
import type { Addition, ImageEditor } from "./image-editor.ts";

const PROGRAM = "/usr/sbin/fluxvm-guest-agent";
const INIT = "/sbin/init";
const SYSTEMD = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
const UNITS = "/etc/systemd/system";
const UNIT = "fluxvm-guest-agent.service";

const SERVICE = `[Unit]
Description=FluxVM guest agent
DefaultDependencies=no
After=local-fs.target systemd-tmpfiles-setup.service
Before=multi-user.target
Conflicts=shutdown.target
Before=shutdown.target

[Service]
ExecStart=${PROGRAM} vm
Restart=always
RestartSec=1
KillMode=mixed
TasksMax=infinity
LimitNOFILE=1048576
OOMPolicy=continue

[Install]
WantedBy=multi-user.target
`;

export interface AgentOptions {
  /** The program's content. */
  readonly program: Uint8Array;
}

/** What to put into an image so that the guest agent starts when it boots. */
export async function agentAdditions(image: ImageEditor, { program }: AgentOptions): Promise<Addition[]> {
  const files: Addition[] = [{ path: PROGRAM, mode: 0o755, content: program }];
  if (!(await hasSystemd(image))) return [...files, { path: INIT, linkTo: PROGRAM }];
  return [
    ...files,
    { path: `${UNITS}/${UNIT}`, mode: 0o644, content: SERVICE },
    { path: `${UNITS}/multi-user.target.wants/${UNIT}`, linkTo: `${UNITS}/${UNIT}` },
    // A console that is a log has nobody who could log in on it.
    ...["serial-getty@ttyS0.service", "getty@tty1.service"].map((unit) => ({
      path: `${UNITS}/${unit}`,
      linkTo: "/dev/null",
    })),
    // Filled in by the first boot, different in every sandbox.
    { path: "/etc/machine-id", mode: 0o444, content: "" },
  ];
}

async function hasSystemd(image: ImageEditor): Promise<boolean> {
  return (await image.present(SYSTEMD)).size > 0;
}
