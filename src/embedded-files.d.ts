// Types of the native files that are embedded in the binary: importing one gives its path.
declare module "*/fluxvm-guest-agent" {
  const path: string;
  export default path;
}

declare module "*/libfluxvm_host.so" {
  const path: string;
  export default path;
}

declare module "*/fluxvm-hypervisor" {
  const path: string;
  export default path;
}

declare module "*/libfluxvm_engine.so" {
  const path: string;
  export default path;
}

declare module "*/fluxvm_tc.bpf.o" {
  const path: string;
  export default path;
}

declare module "*/fluxvm_xdp.bpf.o" {
  const path: string;
  export default path;
}
