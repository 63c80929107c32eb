// The declarations of `fluxvm/plugin` as text, for `fluxctl plugin types`.
// @ts-expect-error The compiler takes a declaration file for types only; here it is text.
import text from "./fluxvm-plugin.d.ts" with { type: "text" };

export const pluginTypesText: string = text;
