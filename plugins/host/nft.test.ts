import { describe, expect, test } from "bun:test";
import { applyNft, nftTable, nftTables, removeNftTable, replaced } from "./nft.ts";

const ABSENT = `fluxvm_test_${process.pid}`;

describe("nft", () => {
  test("a script that is refused names the line, and nothing of it is applied", async () => {
    const script = `table inet ${ABSENT} {\n  chain one {\n    tcp dport no-such-port accept\n  }\n}\n`;
    await expect(applyNft(script)).rejects.toMatchObject({
      code: "NETWORK_FAILED",
      message: expect.stringMatching(/line 3 \(tcp dport no-such-port accept\): \S/),
    });
    expect(await nftTable("inet", ABSENT)).toBeNull();
  });

  test("a table that is not there is none, and is removed all the same", async () => {
    expect(await nftTable("bridge", ABSENT)).toBeNull();
    await removeNftTable("bridge", ABSENT);
    expect((await nftTables()).some(({ name }) => name === ABSENT)).toBe(false);
  });

  test("a namespace that is not there is an error", async () => {
    await expect(nftTables({ namespace: ABSENT })).rejects.toMatchObject({ code: "NETWORK_FAILED" });
  });

  test("a table is replaced as a whole", () => {
    expect(replaced("inet", "x", "  chain y {}")).toBe(
      "table inet x\ndelete table inet x\ntable inet x {\n  chain y {}\n}\n",
    );
    expect(replaced("inet", "x", "")).toBe("table inet x\ndelete table inet x\n");
  });
});
