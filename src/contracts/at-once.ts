// Doing the same for many, so many at a time: enough to keep what does it busy, and few enough open at once.

/**
 * Does `work` for each item, `count` at a time, and gives the results in the order of the items. Every one is tried;
 * rejects with the first failure.
 */
export async function atOnce<Item, Result>(
  count: number,
  items: readonly Item[],
  work: (item: Item, index: number) => Promise<Result>,
): Promise<Result[]> {
  const results = new Array<Result>(items.length);
  const waiting = items.entries();
  const failures: unknown[] = [];
  const worker = async (): Promise<void> => {
    for (const [index, item] of waiting) {
      try {
        results[index] = await work(item, index);
      } catch (error) {
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(count, items.length) }, worker));
  if (failures.length > 0) throw failures[0];
  return results;
}
