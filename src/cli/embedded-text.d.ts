// Files that are embedded as text: `import unit from "./x.service" with { type: "text" }`.
declare module "*.service" {
  const text: string;
  export default text;
}

declare module "*/ga.toml" {
  const text: string;
  export default text;
}

declare module "*/prod.toml" {
  const text: string;
  export default text;
}

declare module "*/lab.toml" {
  const text: string;
  export default text;
}
