// Which lines are keys that may log in.
import { describe, expect, test } from "bun:test";
import { generateKeyPairSync } from "node:crypto";
import { parsePublicKey, sameKey } from "./public-key.ts";

const ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDedWeb7vDpUXiH19Ou4uKKuZvvb43Y/Z0D7o4ks9Tp6";

const string = (bytes: Buffer | string): Buffer => {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, Buffer.from(bytes)]);
};

const line = (type: string, ...parts: (Buffer | string)[]): string =>
  `${type} ${Buffer.concat([type, ...parts].map(string)).toString("base64")}`;

function rsa(bits: number): string {
  const { n = "", e = "" } = generateKeyPairSync("rsa", { modulusLength: bits }).publicKey.export({ format: "jwk" });
  const modulus = Buffer.concat([Buffer.from([0]), Buffer.from(n, "base64url")]);
  return line("ssh-rsa", Buffer.from(e, "base64url"), modulus);
}

describe("a public key", () => {
  test("is a line of a .pub file, with a comment or without", () => {
    const plain = parsePublicKey(ED25519);
    const commented = parsePublicKey(`  ${ED25519} me@here and more \n`);
    if (typeof plain === "string" || typeof commented === "string") throw new Error(`${plain} ${commented}`);
    expect(plain.type).toBe("ssh-ed25519");
    expect(sameKey(plain, commented)).toBe(true);
  });

  test("may be of a NIST curve, or RSA of enough bits", () => {
    const p256 = line("ecdsa-sha2-nistp256", "nistp256", Buffer.alloc(65, 4));
    expect(parsePublicKey(p256)).toMatchObject({ type: "ecdsa-sha2-nistp256" });
    expect(parsePublicKey(rsa(2048))).toMatchObject({ type: "ssh-rsa" });
    expect(parsePublicKey(rsa(1024))).toContain("1024 bits is too weak");
  });

  test("is of no other form", () => {
    for (const [text, fault] of [
      ["", "begins with"],
      ["ssh-dss AAAAB3NzaC1kc3M=", "begins with"],
      [`no-pty ${ED25519}`, "begins with"],
      ["ssh-ed25519", "Base64"],
      ["ssh-ed25519 {}", "Base64"],
      [`${ED25519}\n${ED25519}`, "one line"],
      [line("ssh-ed25519", Buffer.alloc(31)), "damaged"],
      [line("ssh-ed25519", Buffer.alloc(32), "x"), "damaged"],
      [line("ecdsa-sha2-nistp384", "nistp256", Buffer.alloc(97)), "damaged"],
      [ED25519.replace("ssh-ed25519", "ssh-rsa"), "damaged"],
      ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA", "damaged"],
    ] as const) {
      expect([text, parsePublicKey(text)]).toEqual([text, expect.stringContaining(fault)]);
    }
  });
});
