// The two ways in which a commit can lose against an earlier one. Whoever commits matches on the class: the core tries
// the next value after a `LeaseConflict`, the transport reads the stored row after an `IdempotencyConflict`.

/** The value is leased or quarantined; nothing of the commit was written. */
export class LeaseConflict extends Error {
  override readonly name = "LeaseConflict";

  constructor(
    readonly kind: string,
    readonly value: number,
  ) {
    super(`the ${kind} lease ${value} is taken`);
  }
}

/** A row with this hash exists; nothing of the commit was written. */
export class IdempotencyConflict extends Error {
  override readonly name = "IdempotencyConflict";

  constructor(readonly hash: string) {
    super("an idempotency row with this hash exists");
  }
}
