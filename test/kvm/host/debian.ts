// Debian packages for the KVM host, taken from the sources that this machine's apt has, with the backports suite beside
// them. Lists and packages live in a folder of ours; nothing is installed on the machine and its apt is not changed.
import { existsSync } from "node:fs";
import { mkdir, readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "./command.ts";

export const RELEASE = "bookworm";
const BACKPORTS = `${RELEASE}-backports`;
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

type Program = "apt-get" | "apt-cache";

interface Suite {
  readonly mirror: string;
  readonly suite: string;
}

export class Packages {
  readonly #folder: string;
  /** Address of the archive of the release itself. */
  readonly mirror: string;

  private constructor(folder: string, mirror: string) {
    this.#folder = folder;
    this.mirror = mirror;
  }

  /**
   * Reads the package lists into `folder`.
   * @throws Error when this machine's apt has no source of the release, or cannot reach it
   */
  static async open(folder: string): Promise<Packages> {
    const suites = await ownSuites();
    const main = suites.find(({ suite }) => suite === RELEASE);
    if (main === undefined) throw new Error(`the apt sources of this machine have no Debian ${RELEASE}`);
    await mkdir(join(folder, "lists/partial"), { recursive: true });
    await mkdir(join(folder, "archives/partial"), { recursive: true });
    const wanted = [...suites.filter(({ suite }) => suite !== BACKPORTS), { mirror: main.mirror, suite: BACKPORTS }];
    await writeFile(join(folder, "own.sources"), wanted.map(stanza).join("\n"));
    // Nothing is installed as far as apt can see, so a package comes with all that it needs.
    await writeFile(join(folder, "status"), "");
    const packages = new Packages(folder, main.mirror);
    await packages.#apt("apt-get", "update");
    return packages;
  }

  /** The newest version of a package of a suite, and the names that it depends on. */
  async describe(name: string, from: "release" | "backports"): Promise<{ version: string; depends: string[] }> {
    const target = from === "backports" ? ["--target-release", BACKPORTS] : [];
    const record = await this.#apt("apt-cache", ...target, "show", "--no-all-versions", name);
    const field = (key: string): string => new RegExp(`^${key}: (.*)$`, "m").exec(record)?.[1] ?? "";
    return {
      version: field("Version"),
      depends: field("Depends")
        .split(",")
        .map((depend) => depend.trim().split(" ")[0] ?? "")
        .filter((depend) => depend !== ""),
    };
  }

  /** Unpacks packages into `target`, with everything that they depend on; newest versions, backports first. */
  async unpackWithDependencies(names: readonly string[], target: string): Promise<void> {
    await this.#apt("apt-get", "--target-release", BACKPORTS, "--download-only", "--yes", "install", ...names);
    await this.#unpack(join(this.#folder, "archives"), target);
  }

  /** Unpacks one package of a known version into `target`, alone. */
  async unpackAlone(name: string, version: string, target: string): Promise<void> {
    const folder = join(this.#folder, "alone");
    await mkdir(folder);
    await this.download(name, version, folder);
    await this.#unpack(folder, target);
  }

  /** Puts one package of a known version, as the archive has it, into `folder`. */
  async download(name: string, version: string, folder: string): Promise<void> {
    await run([...this.#command("apt-get"), "download", `${name}=${version}`], { folder });
  }

  async #unpack(from: string, target: string): Promise<void> {
    await mkdir(target, { recursive: true });
    const files = (await readdir(from)).filter((file) => file.endsWith(".deb"));
    for (const file of files) await run(["dpkg-deb", "--extract", join(from, file), target]);
  }

  #apt(program: Program, ...args: string[]): Promise<string> {
    return run([...this.#command(program), ...args]);
  }

  /** The program with its settings; arguments follow. */
  #command(program: Program): string[] {
    const settings = {
      "Dir::Etc::SourceList": join(this.#folder, "own.sources"),
      "Dir::Etc::SourceParts": "/dev/null",
      "Dir::Etc::Preferences": "/dev/null",
      "Dir::Etc::PreferencesParts": "/dev/null",
      "Dir::State::Lists": join(this.#folder, "lists"),
      "Dir::State::Status": join(this.#folder, "status"),
      "Dir::Cache": this.#folder,
      "Dir::Cache::Archives": join(this.#folder, "archives"),
      "APT::Install-Recommends": "false",
      // Packages are read here and run nowhere but in the KVM host: apt's own user cannot see this folder.
      "APT::Sandbox::User": "root",
      "Acquire::Languages": "none",
      "Acquire::Retries": "3",
    };
    const options = Object.entries(settings).flatMap(([key, value]) => ["-o", `${key}=${value}`]);
    return [program, "--quiet", ...options];
  }
}

/** The suites of the release that this machine's apt knows, by what the archives say of themselves. */
async function ownSuites(): Promise<Suite[]> {
  const format = "$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)|$(RELEASE)";
  const list = (): Promise<string> => run(["apt-get", "indextargets", "--format", format, "Created-By: Packages"]);
  let lines = await list();
  if (!lines.includes(`|${RELEASE}|`)) {
    await run(["apt-get", "--quiet", "update"]);
    lines = await list();
  }
  return lines
    .split("\n")
    .map((line) => line.split("|"))
    .filter(([origin, codename, component]) => {
      return origin?.startsWith("Debian") && codename?.startsWith(RELEASE) && component === "main";
    })
    .map(([, , , mirror = "", suite = ""]) => ({ mirror, suite }));
}

function stanza({ mirror, suite }: Suite): string {
  const keyring = existsSync(KEYRING) ? `Signed-By: ${KEYRING}\n` : "";
  return `Types: deb\nURIs: ${mirror}\nSuites: ${suite}\nComponents: main\nArchitectures: amd64\n${keyring}`;
}
