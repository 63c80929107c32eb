// Waiting, without keeping the agent running for it.

/** A pause that does not keep the process running. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => {
    setTimeout(resolve, ms).unref();
  });
}
