// The whole configuration file: every key, its type, its default and its description. Keys of features that this build
// does not have are marked `later`; `load.ts` refuses them when they are set to anything but their default.
import { z } from "zod";
import {
  blockedCidrs,
  choice,
  cidrs,
  flag,
  integer,
  later,
  listen,
  optionalChoice,
  optionalFlag,
  optionalInteger,
  optionalListen,
  optionalNumber,
  optionalPath,
  optionalText,
  path,
  paths,
  ports,
  secret,
  table,
  tables,
  text,
  texts,
  textWithDefault,
} from "./key.ts";
import { limits } from "./limits.ts";
import { parsePublicKey } from "./public-key.ts";

const INTEGER_MAX = Number.MAX_SAFE_INTEGER;
const UINT32_MAX = 0xffff_ffff;
const YEAR_SECS = 366 * 24 * 3600;
const MEMORY_MIB_MAX = 16 * 1024 * 1024;
const BACKENDS = ["qemu", "cloud-hypervisor", "firecracker", "flux-vm", "vz"] as const;

const auth = table("Who may call the API. Without tokens only loopback callers are served.", {
  tokens: tables("Static bearer tokens; one [[auth.tokens]] table each.", {
    token: secret(
      z
        .string()
        .regex(/^[\x21-\x7e]{1,512}$/)
        .meta({ description: "The token itself.", expected: "1 to 512 visible ASCII characters" }),
    ),
    role: z.enum(["admin", "read-only"]).meta({ description: "What the token may do." }),
    name: optionalText("Name of the token in logs and quotas; a hash of the token when unset."),
    tenant: optionalText("Binds the token to one tenant: it sees and makes nothing else."),
  }),
  require: flag(
    false,
    "Serve nobody while there are no tokens, not even on loopback. Once there are, everybody needs one.",
  ),
  max_vms_per_token: optionalInteger(1, INTEGER_MAX, "Sandboxes that one token may have at a time."),
  max_memory_mib_per_token: optionalInteger(1, INTEGER_MAX, "Memory in MiB over all sandboxes of one token."),
  rate_limit_rps: optionalInteger(1, 1_000_000, "Requests a second and caller; needs rate_limit_burst."),
  rate_limit_burst: optionalInteger(1, 1_000_000, "Requests at once and caller; needs rate_limit_rps."),
  oidc_issuer: later(optionalText("Issuer URL of an OpenID Connect provider; needs oidc_audience.")),
  oidc_audience: later(optionalText("Audience that OpenID Connect tokens must name.")),
  trusted_proxies: later(texts("Addresses of proxies whose X-Client-Cert-* headers are believed.")),
});

const tls = table("TLS for a TCP listener. With client_ca, clients must show a certificate (mTLS).", {
  cert: optionalPath("PEM certificate chain; needs key."),
  key: optionalPath("PEM private key; needs cert."),
  client_ca: optionalPath("PEM certificates that sign the clients' certificates."),
});

const ssh = table(
  "The SSH server: shells, commands, files and ports of sandboxes, for the clients that everybody has.",
  {
    listen: optionalListen("Address of the SSH server, such as 0.0.0.0:7722; there is none when unset."),
    host_key: optionalPath("Private key of the server, for its owner only; made in <state_dir>/ssh when unset."),
    keys: tables("Who may log in, with a sandbox's id as user name; one [[ssh.keys]] table each.", {
      key: z
        .string()
        .max(8192)
        .superRefine((line, context) => {
          const key = parsePublicKey(line);
          if (typeof key === "string") context.addIssue({ code: "custom", message: key });
        })
        .meta({ description: "The public key, as the line of a .pub file.", expected: "a line of a .pub file" }),
      role: z.enum(["admin", "read-only"]).meta({ description: "What the key may do; read-only opens no session." }),
      name: optionalText("Name of the key in logs; a hash of the key when unset."),
      tenant: optionalText("Binds the key to the sandboxes of one tenant."),
    }),
  },
);

const procbox = table("Process sandboxes: commands confined by the kernel, without a virtual machine.", {
  enabled: flag(false, "Serve process sandboxes."),
  best_effort: flag(false, "Run even where the kernel cannot confine fully; what is missing is recorded."),
  allow_net: flag(false, "Let a sandbox ask for TCP ports to connect to."),
  default_timeout_secs: integer(30, 1, YEAR_SECS, "Wall time in seconds of a command that names none."),
  max_timeout_secs: integer(300, 1, YEAR_SECS, "Longest wall time in seconds that a command may ask for."),
  default_memory_mib: integer(512, 64, MEMORY_MIB_MAX, "Memory in MiB of a sandbox that names none."),
  max_memory_mib: integer(2048, 64, MEMORY_MIB_MAX, "Most memory in MiB that a sandbox may ask for."),
  max_processes: integer(4096, 1, 4_194_304, "Most processes that a sandbox may have."),
  max_workspace_mib: integer(1024, 16, MEMORY_MIB_MAX, "Bound on a sandbox's files in MiB."),
  uid_base: integer(200_000, 1, 4_000_000_000, "First uid of the sandboxes and virtual machines; each has its own."),
  uid_count: integer(
    4096,
    0,
    1_000_000,
    "Number of these uids; as many above them are for supervisors, and as many again for virtual machines.",
  ),
  allow_root: later(flag(false, "Run sandboxes as root when uid_count is 0.")),
  isolation: choice("auto", ["off", "auto", "strict"], "Namespaces: never, where possible, or refuse without them."),
});

const vsock = table(
  "Vsock: how virtual machines are reached where the host has it. Each has an id (cid) on the host.",
  {
    cid_base: integer(1_000_000, 3, 4_294_967_294, "First id of the machines."),
    cid_count: integer(65_536, 1, 16_777_216, "Number of these ids."),
  },
);

const addresses = table(
  "Addresses of sandboxes with a network: each has a block of sixteen in 169.254.0.0/16, which no two agents of a host share.",
  {
    block_base: integer(1, 0, 4095, "First block of these sandboxes."),
    block_count: integer(4095, 1, 4096, "Number of these blocks."),
  },
);

const dataplane = table("What decides each packet of a sandbox with a network.", {
  mode: optionalChoice(
    ["ebpf", "legacy", "cilium"],
    "Enforcement: own BPF programs, nftables, or own BPF programs beside Cilium. When unset it is ebpf, and legacy " +
      "where the host has no BPF and required is unset too.",
  ),
  bpf_object: optionalPath("BPF object to load instead of the built-in one."),
  pin_root: path("/sys/fs/bpf/fluxvm", "Directory of pinned BPF programs and maps."),
  required: optionalFlag(
    "Refuse a sandbox when this cannot be set up for it, instead of falling back to nftables; true when unset.",
  ),
  default_allow: flag(true, "Allow what no rule names; lists that are not empty deny what they do not name."),
  allow_cidrs: cidrs("Address ranges that sandboxes without a policy of their own may reach."),
  allow_ports: ports("Ports that they may reach; icmp/0 and icmp6/0 are ICMP."),
  max_egress_mbps: optionalInteger(1, UINT32_MAX, "Egress cap of a sandbox in Mbit/s."),
  max_egress_pps: optionalInteger(1, UINT32_MAX, "Egress cap of a sandbox in packets a second."),
  sample_rate: integer(0, 0, 2_147_483_647, "Report one in this many allowed packets as an event; 0 none."),
  xdp: table("A blocklist of source addresses on the host's uplink, before anything else sees a packet.", {
    enabled: flag(false, "Attach the XDP program."),
    interface: optionalText("Interface to attach it to."),
    bpf_object: optionalPath("BPF object to load instead of the built-in one."),
    pin_root: path("/sys/fs/bpf/fluxvm", "Directory of pinned BPF programs and maps."),
    required: flag(false, "Refuse to start without it."),
    block_cidrs: blockedCidrs("Address ranges whose packets are dropped."),
  }),
});

const sandbox = table("Sandboxes of every backend.", {
  autopause_idle_secs: later(integer(0, 0, YEAR_SECS, "Pause a sandbox after this many idle seconds; 0 never.")),
  autopause_scan_secs: later(integer(10, 1, 86_400, "Seconds between looks for idle sandboxes.")),
  idle_balloon_secs: later(integer(0, 0, YEAR_SECS, "Shrink an idle sandbox's memory after this long; 0 never.")),
  idle_balloon_percent: later(integer(50, 1, 90, "Share of its memory that is taken, in percent.")),
  hibernate_idle_secs: later(integer(0, 0, YEAR_SECS, "Hibernate an idle sandbox after this long; 0 never.")),
  templates_dir: optionalPath("Templates; <state_dir>/templates when unset."),
  volumes_dir: later(optionalPath("Named volumes; <state_dir>/volumes when unset.")),
  http_proxy_default_port: later(integer(8080, 1, 65_535, "Guest port behind /sandbox/{id}/ when none is named.")),
  ready_timeout_secs: integer(60, 1, 3600, "Seconds from a start until the guest agent has to answer."),
  warm_slots: later(integer(0, 0, 64, "Prepared sandboxes to keep ready.")),
  egress_allow_domains: later(texts("Hosts that sandboxes may reach by name.")),
  egress_http_rules: later(
    tables("Method, host and path rules of the egress proxy.", {
      host: text("Host name or suffix."),
      methods: texts("HTTP methods; empty is all."),
      paths: texts("Path prefixes; empty is all."),
    }),
  ),
  egress_tls_intercept: later(flag(false, "Open TLS so that the rules apply to it.")),
  egress_ca_cert: later(
    textWithDefault("", "Certificate of the intercepting CA; <state_dir>/egress-ca.crt when empty."),
  ),
  egress_ca_key: later(textWithDefault("", "Key of the intercepting CA; <state_dir>/egress-ca.key when empty.")),
  egress_tls_ports: later(
    z.array(z.int().min(1).max(65_535)).default([]).meta({ description: "Ports that carry TLS; 443 when empty." }),
  ),
  egress_tls_allow_private: later(flag(false, "Let the proxy reach addresses that are not public.")),
  egress_upstream_ca_file: later(textWithDefault("", "More roots that the proxy trusts.")),
  egress_max_body_bytes: later(
    integer(1_073_741_824, 0, INTEGER_MAX, "Largest body through the proxy, each way; 0 is unlimited."),
  ),
  egress_transparent_listen: later(textWithDefault("", "Address of the transparent proxy; off when empty.")),
  egress_proxy_listen: later(textWithDefault("", "Address of the explicit proxy; off when empty.")),
  credential_vault: later(
    tables("Authorization headers that the egress proxy adds.", {
      host: text("Host name or suffix."),
      authorization: secret(text("The full header value.")),
    }),
  ),
  procbox,
  vsock,
  addresses,
  dataplane,
});

const policy = table("Bounds on what callers may ask for.", {
  max_vcpus: later(optionalInteger(1, 256, "Virtual CPUs of one sandbox.")),
  max_memory_mib: later(optionalInteger(1, MEMORY_MIB_MAX, "Memory in MiB of one sandbox.")),
  max_disk_gib: later(optionalInteger(1, 1_048_576, "Disk in GiB of one sandbox.")),
  max_ttl_seconds: later(optionalInteger(1, YEAR_SECS, "Longest life in seconds; makes a TTL mandatory.")),
  allowed_backends: later(
    z.array(z.enum(BACKENDS)).nullable().default(null).meta({ description: "Backends that may be used." }),
  ),
  allowed_image_dirs: later(paths("Directories that images may come from; all when empty.")),
  allowed_network_modes: texts("Network modes that may be used; all when empty."),
  require_catalog_names: later(optionalFlag("Refuse image paths; only catalogue names.")),
  allow_extra_args: later(flag(false, "Let callers pass arguments to the hypervisor.")),
  max_vcpus_host: later(optionalInteger(1, INTEGER_MAX, "Virtual CPUs over all sandboxes.")),
  max_memory_mib_host: later(optionalInteger(1, INTEGER_MAX, "Memory in MiB over all sandboxes.")),
  min_host_mem_available_mib: later(optionalInteger(1, INTEGER_MAX, "Refuse when the host has less memory free.")),
  max_host_mem_psi_some_avg10: later(optionalNumber(0, 100, "Refuse above this memory pressure (some, 10 s).")),
  max_host_mem_psi_full_avg10: later(optionalNumber(0, 100, "Refuse above this memory pressure (full, 10 s).")),
  deny_host_pressure_level: later(optionalText("Refuse at this pressure level or above.")),
  pressure_defer_secs: later(integer(0, 0, 3600, "Wait this long for pressure to fall before refusing.")),
  tenants: later(
    tables("Totals of one tenant.", {
      tenant: text("Name of the tenant."),
      max_vcpus_total: optionalInteger(1, INTEGER_MAX, "Virtual CPUs over its sandboxes."),
      max_memory_mib_total: optionalInteger(1, INTEGER_MAX, "Memory in MiB over its sandboxes."),
      max_vms_total: optionalInteger(1, INTEGER_MAX, "Sandboxes at a time."),
    }),
  ),
});

const storage = table("Where sandboxes' files live.", {
  plugin: optionalText(
    "Id of the storage plugin; the first that works here when unset. Change it only while there are no sandboxes.",
  ),
  pool_size_mib: optionalInteger(512, MEMORY_MIB_MAX, "Size in MiB of the btrfs pool; from the free disk when unset."),
  ceph_user: later(optionalText("Ceph user of RBD disks.")),
  ceph_conf: later(optionalPath("Ceph configuration file.")),
});

const jailer = table("The jailer of Firecracker guests.", {
  enabled: later(flag(false, "Start Firecracker through its jailer.")),
  enforce: later(flag(false, "Refuse a Firecracker guest that is not jailed.")),
  jailer_binary: later(textWithDefault("jailer", "Program, by path or name.")),
  uid: later(optionalInteger(1, 4_294_967_294, "One uid for all guests.")),
  gid: later(optionalInteger(1, 4_294_967_294, "One gid for all guests.")),
  chroot_base_dir: later(optionalPath("Directory of the jails.")),
  uid_range_start: later(optionalInteger(1, 4_294_967_294, "First uid of a pool with one uid a guest.")),
  uid_range_len: later(optionalInteger(1, 1_000_000, "Size of that pool.")),
});

const catalog = table("The image catalogue.", {
  path: later(optionalPath("File of the catalogue.")),
  trusted_signers: later(
    tables("Keys whose signatures are accepted; with any, unsigned images are refused.", {
      name: text("Name shown for the signer."),
      public_key: text("Ed25519 public key."),
    }),
  ),
});

const apple = table("Sandboxes on Apple hardware.", {
  oci_kernel: later(textWithDefault("oci-kernel", "Kernel of container sandboxes.")),
  oci_initrd: later(textWithDefault("oci-initrd", "Initial RAM disk of container sandboxes.")),
  oci_cmdline: later(textWithDefault("console=hvc0 loglevel=4 panic=-1", "Their kernel command line.")),
  oci_builder_memory_mib: later(integer(1024, 128, MEMORY_MIB_MAX, "Memory in MiB of the image builder.")),
  oci_warm_slots: later(integer(0, 0, 64, "Prepared container sandboxes per size.")),
  oci_warm_sizes: later(texts('Sizes to prepare, such as "1x512".')),
  oci_registry_credentials: later(
    tables("Credentials of registries.", {
      registry: text("Registry host."),
      username: text("User name."),
      password: secret(optionalText("Password.")),
      keychain_service: optionalText("Keychain entry that holds the password."),
    }),
  ),
});

const security = later(
  z
    .record(z.string(), z.json())
    .nullable()
    .default(null)
    .meta({ description: "Security profiles of virtual machines.", expected: "a table" }),
);

const pluginOptions = z.record(z.string().regex(/^[a-z0-9][a-z0-9-]{0,31}$/), z.record(z.string(), z.json()));

const pluginTable = (kind: string) =>
  pluginOptions.default({}).meta({
    description: `Options of ${kind} plugins, one table an id.`,
    expected: "a table of tables, one a plugin id",
  });

const binary = (name: string) => later(textWithDefault(name, "Program, by path or name."));

export const configSchema = z.strictObject({
  listen: listen("127.0.0.1:7788", "Address of the API. A non-loopback address needs tokens."),
  state_dir: path("/var/lib/fluxvm", "Durable state: database, workspaces, extracted programs."),
  run_dir: path(
    "/run/fluxvm",
    "Sockets and locks; empty after a reboot. What agents of one host share is in /run/fluxvm whatever this says.",
  ),
  plugins_dir: path("/etc/fluxvm/plugins", "External plugins (.ts, .js): owned by root and writable by root only."),
  log_level: choice("info", ["debug", "info", "warn", "error"], "Least level that is logged, as JSON lines on stderr."),
  audit_log: optionalPath("File for the audit lines, one a request; the log on stderr when unset."),
  isolation: choice("process", ["process", "thread"], "Where the engine runs: a jailed child, or in the agent."),
  reaper_interval_secs: integer(5, 1, 3600, "Seconds between looks for expired sandboxes."),
  default_bridge: textWithDefault("vmbr0", "Bridge of machines that want no namespace of their own and name none."),
  fluxvm_engine: optionalChoice(["firecracker", "kvm"], "Engine of flux-vm guests that name none; kvm when unset."),
  fluxvm_kernel: later(optionalPath("Kernel of flux-vm guests.")),
  firecracker_kernel: later(optionalPath("Kernel of Firecracker guests.")),
  qemu_binary: textWithDefault("qemu-system-x86_64", "QEMU, by path or name."),
  qemu_img_binary: textWithDefault("qemu-img", "QEMU's tool for disks, by path or name."),
  virtiofsd_binary: textWithDefault("virtiofsd", "Server of shared folders, by path or name."),
  cloud_hypervisor_binary: binary("cloud-hypervisor"),
  ch_remote_binary: binary("ch-remote"),
  cloud_localds_binary: binary("cloud-localds"),
  firecracker_binary: binary("firecracker"),
  fluxvm_hypervisor_binary: binary("fluxvm-hypervisor"),
  swtpm_binary: binary("swtpm"),
  auth,
  tls,
  ssh,
  limits: table("Bounds of this host.", {
    sandboxes_max: integer(limits.sandboxesMax, 1, limits.sandboxesMax, "Sandboxes that may exist at a time."),
  }),
  storage,
  sandbox,
  policy,
  jailer,
  catalog,
  security,
  apple,
  plugins: table("Options of plugins, by kind and id, such as [plugins.backend.fake].", {
    backend: pluginTable("backend"),
    dataplane: pluginTable("dataplane"),
    "change-set": pluginTable("change-set"),
    storage: pluginTable("storage"),
  }),
});

/** The configuration after defaults; names are those of the file. */
export type Config = z.output<typeof configSchema>;
