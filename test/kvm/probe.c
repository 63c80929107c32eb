/* Says whether this machine's KVM runs a guest: makes one with a page of memory and a processor in real mode, lets it
 * write three letters to a port, and prints what arrived there. */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define PAGE 4096
#define LOADED_AT 0x1000
#define PORT 0x42
#define EXITS_MAX 16

/* mov dx, PORT; for each letter: mov al, LETTER; out dx, al; then hlt. */
static const unsigned char code[] = {0xba, PORT, 0x00, 0xb0, 'k', 0xee, 0xb0, 'v', 0xee, 0xb0, 'm', 0xee, 0xf4};

static int checked(int result, const char *what) {
  if (result >= 0) return result;
  perror(what);
  exit(1);
}

int main(void) {
  int kvm = checked(open("/dev/kvm", O_RDWR | O_CLOEXEC), "open /dev/kvm");
  printf("api %d\n", checked(ioctl(kvm, KVM_GET_API_VERSION, 0), "KVM_GET_API_VERSION"));
  int vm = checked(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
  void *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memcpy(memory, code, sizeof code);
  struct kvm_userspace_memory_region region = {
      .guest_phys_addr = LOADED_AT, .memory_size = PAGE, .userspace_addr = (unsigned long)memory};
  checked(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
  int vcpu = checked(ioctl(vm, KVM_CREATE_VCPU, 0), "KVM_CREATE_VCPU");
  size_t run_bytes = checked(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
  struct kvm_run *run = mmap(NULL, run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
  struct kvm_sregs segments;
  checked(ioctl(vcpu, KVM_GET_SREGS, &segments), "KVM_GET_SREGS");
  segments.cs.base = 0;
  segments.cs.selector = 0;
  checked(ioctl(vcpu, KVM_SET_SREGS, &segments), "KVM_SET_SREGS");
  struct kvm_regs registers = {.rip = LOADED_AT, .rflags = 2};
  checked(ioctl(vcpu, KVM_SET_REGS, &registers), "KVM_SET_REGS");
  for (int exits = 0; exits < EXITS_MAX; exits++) {
    checked(ioctl(vcpu, KVM_RUN, 0), "KVM_RUN");
    if (run->exit_reason == KVM_EXIT_HLT) {
      printf("\nhalted\n");
      return 0;
    }
    if (run->exit_reason != KVM_EXIT_IO || run->io.port != PORT) break;
    putchar(*((char *)run + run->io.data_offset));
  }
  fprintf(stderr, "unexpected exit %u\n", run->exit_reason);
  return 1;
}
