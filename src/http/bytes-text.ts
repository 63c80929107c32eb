// Bytes from a sandbox as JSON: text where they are UTF-8, Base64 beside or instead where they are not. A name or an
// output is never shown as something else without the exact bytes next to it.

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lossy = new TextDecoder("utf-8", { ignoreBOM: true });

/** The text of UTF-8 bytes, or null. */
export function utf8OrNull(bytes: Uint8Array): string | null {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

/** `{[name]}` and, for bytes that are not UTF-8, `{[name]_base64}` with the exact bytes. */
export function outputFields<Name extends string>(
  name: Name,
  bytes: Uint8Array,
): { [K in Name]: string } & { [K in `${Name}_base64`]?: string } {
  const text = utf8OrNull(bytes);
  const fields =
    text === null ? { [name]: lossy.decode(bytes), [`${name}_base64`]: bytes.toBase64() } : { [name]: text };
  return fields as ReturnType<typeof outputFields<Name>>;
}

/** `{[name]: […]}` of the UTF-8 names and, when there are others, `{[name]_base64: […]}` of those. Order is kept. */
export function nameListFields<Name extends string>(
  name: Name,
  names: readonly Uint8Array[],
): { [K in Name]: string[] } & { [K in `${Name}_base64`]?: string[] } {
  const texts: string[] = [];
  const others: string[] = [];
  for (const bytes of names) {
    const text = utf8OrNull(bytes);
    if (text === null) others.push(bytes.toBase64());
    else texts.push(text);
  }
  const fields = others.length === 0 ? { [name]: texts } : { [name]: texts, [`${name}_base64`]: others };
  return fields as ReturnType<typeof nameListFields<Name>>;
}
