// One thing at a time for each name; what was asked first is done first.

export class Turns {
  readonly #last = new Map<string, Promise<unknown>>();

  async take<T>(name: string, action: () => Promise<T>): Promise<T> {
    const before = this.#last.get(name) ?? Promise.resolve();
    const turn = before.then(action, action);
    const settled = turn.catch(() => undefined);
    this.#last.set(name, settled);
    try {
      return await turn;
    } finally {
      if (this.#last.get(name) === settled) this.#last.delete(name);
    }
  }
}
