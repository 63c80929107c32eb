// Shell scripts are imported as text and so become part of the program.
declare module "*.sh" {
  const text: string;
  export default text;
}
