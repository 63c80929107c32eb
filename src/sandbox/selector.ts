// Label selectors: `a=b,c!=d,has,!hasnt`. Every term must hold.
import { AgentError } from "../errors/agent-error.ts";

type Labels = Readonly<Record<string, string>>;
type Term = (labels: Labels) => boolean;

const TERMS_MAX = 64;

function parseTerm(text: string): Term {
  const bad = (): never => {
    throw new AgentError("BAD_REQUEST", `bad label selector term: ${JSON.stringify(text.slice(0, 128))}`);
  };
  const match = /^(!?)([^=!,\s]+)(?:(!?=)(.*))?$/.exec(text);
  if (match === null) return bad();
  const [, negation, key = "", operator, value = ""] = match;
  const has = (labels: Labels): boolean => Object.hasOwn(labels, key);
  if (operator === undefined) return negation === "" ? has : (labels) => !has(labels);
  if (negation !== "") return bad();
  const equal: Term = (labels) => has(labels) && labels[key] === value;
  return operator === "=" ? equal : (labels) => !equal(labels);
}

/** Turns a selector into a test of labels. Rejects with `BAD_REQUEST`. An empty selector accepts everything. */
export function parseSelector(selector: string): (labels: Labels) => boolean {
  if (selector.trim() === "") return () => true;
  const terms = selector.split(",");
  if (terms.length > TERMS_MAX) throw new AgentError("BAD_REQUEST", `a label selector has at most ${TERMS_MAX} terms`);
  const tests = terms.map((term) => parseTerm(term.trim()));
  return (labels) => tests.every((test) => test(labels));
}
