// What templates are built from, as the command line names it.

export const TEMPLATE_SOURCES = ["micro", "debian", "rootfs", "tar"] as const;

/** The kernel for virtual machines of whatever Debian the host is. */
export const KERNEL_PACKAGE = "linux-image-cloud-amd64";
