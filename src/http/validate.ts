// Checks what clients send against the schemas that also make the OpenAPI document. Nothing is coerced; unknown fields
// are ignored. A wrong type or a missing field is a 422, a value out of its range a 400; both name the field.
import type { Static, TObject, TSchema } from "@sinclair/typebox";
import { type TypeCheck, TypeCompiler } from "@sinclair/typebox/compiler";
import { type ValueError, ValueErrorType } from "@sinclair/typebox/errors";
import type { Json } from "../contracts/json.ts";
import { AgentError } from "../errors/agent-error.ts";

/** Compiles a schema into a check that returns the typed JSON body; throws `INVALID_FIELD` or `BAD_REQUEST`. */
export function bodyCheck<S extends TSchema>(schema: S): (value: Json) => Static<S> {
  const check = TypeCompiler.Compile(schema);
  return (value) => {
    const present = withoutNulls(schema, value);
    if (!check.Check(present)) throw firstError(check, present);
    return present as Static<S>;
  };
}

/** Compiles a schema of query parameters: strings, and integers as plain decimal digits. */
export function queryCheck<S extends TObject>(schema: S): (query: URLSearchParams) => Static<S> {
  const check = TypeCompiler.Compile(schema);
  const names = Object.keys(schema.properties);
  return (query) => {
    const value: Record<string, string | number> = {};
    for (const name of names) {
      const text = query.get(name);
      if (text === null) continue;
      const isNumber = schema.properties[name]!.type === "integer" && /^\d{1,15}$/.test(text);
      value[name] = isNumber ? Number(text) : text;
    }
    if (!check.Check(value)) throw firstError(check, value);
    return value as Static<S>;
  };
}

/** A named field that is null counts as absent, as in the reference; what a map like `labels` holds is left alone. */
function withoutNulls(schema: TSchema, value: Json): Json {
  const properties = (schema as Partial<TObject>).properties;
  if (properties === undefined || typeof value !== "object" || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value).flatMap(([name, member]) => {
      if (!Object.hasOwn(properties, name)) return [[name, member]];
      return member === null ? [] : [[name, withoutNulls(properties[name]!, member)]];
    }),
  );
}

/** Failures of a value that has the right type. */
const RANGE_ERRORS: ReadonlySet<ValueErrorType> = new Set([
  ValueErrorType.ArrayMaxItems,
  ValueErrorType.ArrayMinItems,
  ValueErrorType.IntegerMaximum,
  ValueErrorType.IntegerMinimum,
  ValueErrorType.ObjectMaxProperties,
  ValueErrorType.StringMaxLength,
  ValueErrorType.StringMinLength,
  ValueErrorType.StringPattern,
]);

function firstError(check: TypeCheck<TSchema>, value: unknown): AgentError {
  const error = check.Errors(value).First()!;
  const field = fieldName(error.path);
  const where = field === "" ? "the body" : `field ${field}`;
  const code = RANGE_ERRORS.has(error.type) ? "BAD_REQUEST" : "INVALID_FIELD";
  return new AgentError(code, `${where}: ${problem(error)}`, { details: field === "" ? {} : { field } });
}

function problem(error: ValueError): string {
  return error.type === ValueErrorType.ObjectRequiredProperty
    ? "is missing"
    : error.message.charAt(0).toLowerCase() + error.message.slice(1);
}

/** `/process/argv/0` → `process.argv[0]`. */
function fieldName(pointer: string): string {
  return pointer
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"))
    .reduce((name, part) => (/^\d+$/.test(part) ? `${name}[${part}]` : name === "" ? part : `${name}.${part}`), "");
}
