// Files that are embedded as text: `import unit from "./x.service" with { type: "text" }`.
declare module "*.service" {
  const text: string;
  export default text;
}
