// Work on many files at a time: enough of it to keep the disk busy, and few enough open at once.

/** Does `work` on every item, `count` at a time, and gives the results in the order of the items. The first failure rejects. */
export async function atOnce<Item, Result>(
  count: number,
  items: readonly Item[],
  work: (item: Item) => Promise<Result>,
): Promise<Result[]> {
  const results = new Array<Result>(items.length);
  const rest = items.entries();
  const worker = async (): Promise<void> => {
    for (const [n, item] of rest) results[n] = await work(item);
  };
  await Promise.all(Array.from({ length: Math.min(count, items.length) }, worker));
  return results;
}
