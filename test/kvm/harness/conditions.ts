// What decides which tests of KVM hosts there are.

/** Everything is asked for, however long that takes. */
export const isFull = process.env.FLUXVM_TEST_FULL === "1";

/** Why no KVM host can be made here; null when one can. */
export const missing =
  process.getuid?.() !== 0 ? "root" : Bun.which("apt-get") === null || Bun.which("debootstrap") === null ? "apt" : null;
