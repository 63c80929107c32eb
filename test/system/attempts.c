// Escape attempts that need system calls. `attempts NAME [ARG…]` tries one and prints `BLOCKED <errno name>` or
// `ESCAPED`; exit 0 when blocked, 1 when it got through, 2 for an unknown name. Built static by the escape suite.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/sched.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <arpa/inet.h>
#include <grp.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif

// Each attempt returns 0 or more when it got through, and -1 with errno when it was refused.
typedef long (*attempt_fn)(char **argv);

static long as_result(long value) { return value < 0 ? -1 : 0; }
static long get_pid(char **argv) { return argv[0] ? atol(argv[0]) : 1; }

static long open_read(char **argv) {
  int fd = open(argv[0], O_RDONLY | O_NONBLOCK);
  char byte;
  if (fd < 0) return -1;
  return as_result(read(fd, &byte, 1));
}
static long open_only(char **argv) { return as_result(open(argv[0], O_RDWR | O_NONBLOCK)); }
static long create_file(char **argv) { return as_result(open(argv[0], O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); }
static long append_file(char **argv) {
  int fd = open(argv[0], O_WRONLY | O_APPEND);
  return fd < 0 ? -1 : as_result(write(fd, "x", 1));
}
static long list_dir(char **argv) { return as_result(open(argv[0], O_RDONLY | O_DIRECTORY)); }
static long make_node_char(char **argv) { return as_result(mknod("node-c", S_IFCHR | 0666, makedev(1, 1))); }
static long make_node_block(char **argv) { return as_result(mknod("node-b", S_IFBLK | 0666, makedev(7, 0))); }
static long hard_link(char **argv) { return as_result(link(argv[0], "hard-link")); }
static long handle_open(char **argv) {
  struct { unsigned bytes; int type; unsigned char data[128]; } handle = {.bytes = 8, .type = 1};
  uint32_t root[2] = {2, 0};
  memcpy(handle.data, root, sizeof root);
  int dir = open(".", O_RDONLY | O_DIRECTORY);
  return as_result(syscall(SYS_open_by_handle_at, dir, &handle, O_RDONLY));
}

static long do_mount_tmpfs(char **argv) { mkdir("m", 0700); return as_result(mount("t", "m", "tmpfs", 0, "")); }
static long do_mount_bind(char **argv) { mkdir("m", 0700); return as_result(mount("/usr", "m", NULL, MS_BIND, NULL)); }
static long do_mount_proc(char **argv) { mkdir("m", 0700); return as_result(mount("p", "m", "proc", 0, "")); }
static long do_umount(char **argv) { return as_result(umount2("/proc", MNT_DETACH)); }
static long do_remount(char **argv) { return as_result(mount(NULL, "/usr", NULL, MS_REMOUNT | MS_BIND, NULL)); }
static long do_fsopen(char **argv) { return as_result(syscall(430 /* fsopen */, "tmpfs", 0)); }
static long do_open_tree(char **argv) { return as_result(syscall(428 /* open_tree */, AT_FDCWD, "/usr", 1)); }
static long do_pivot(char **argv) { mkdir("m", 0700); return as_result(syscall(SYS_pivot_root, ".", "m")); }
static long do_chroot(char **argv) { return as_result(chroot(".")); }

static long unshare_flag(int flag) { return as_result(unshare(flag)); }
static long unshare_user(char **argv) { return unshare_flag(CLONE_NEWUSER); }
static long unshare_mount(char **argv) { return unshare_flag(CLONE_NEWNS); }
static long unshare_net(char **argv) { return unshare_flag(CLONE_NEWNET); }
static long unshare_pid(char **argv) { return unshare_flag(CLONE_NEWPID); }
static long unshare_cgroup(char **argv) { return unshare_flag(CLONE_NEWCGROUP); }
static long clone_user(char **argv) {
  long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
  if (pid == 0) _exit(0);
  return as_result(pid);
}
static long clone3_user(char **argv) {
  struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
  long pid = syscall(SYS_clone3, &args, sizeof args);
  if (pid == 0) _exit(0);
  return as_result(pid);
}
static long join_ns(char **argv) {
  int fd = open(argv[0], O_RDONLY);
  return fd < 0 ? -1 : as_result(setns(fd, 0));
}

static long trace_attach(char **argv) { return as_result(ptrace(PTRACE_ATTACH, get_pid(argv), NULL, NULL)); }
static long trace_seize(char **argv) { return as_result(ptrace(PTRACE_SEIZE, get_pid(argv), NULL, NULL)); }
static long trace_me(char **argv) { return as_result(ptrace(PTRACE_TRACEME, 0, NULL, NULL)); }
static long vm_read(char **argv) {
  char buffer[8];
  struct iovec local = {buffer, sizeof buffer}, remote = {(void *)&errno, sizeof buffer};
  return as_result(process_vm_readv(get_pid(argv), &local, 1, &remote, 1, 0));
}
static long vm_write(char **argv) {
  char buffer[8] = {0};
  struct iovec local = {buffer, sizeof buffer}, remote = {(void *)buffer, sizeof buffer};
  return as_result(process_vm_writev(get_pid(argv), &local, 1, &remote, 1, 0));
}
static long pidfd_steal(char **argv) {
  int pidfd = syscall(SYS_pidfd_open, get_pid(argv), 0);
  return pidfd < 0 ? -1 : as_result(syscall(SYS_pidfd_getfd, pidfd, 3, 0));
}
static long send_kill(char **argv) { return as_result(kill(get_pid(argv), SIGKILL)); }
static long send_probe(char **argv) { return as_result(kill(get_pid(argv), 0)); }
static long raise_limit_of(char **argv) {
  struct rlimit limit;
  return as_result(prlimit(get_pid(argv), RLIMIT_NOFILE, NULL, &limit));
}

static long tcp_connect(char **argv) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[0]))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  return fd < 0 ? -1 : as_result(connect(fd, (void *)&to, sizeof to));
}
static long tcp6_connect(char **argv) {
  struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[0])), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = socket(AF_INET6, SOCK_STREAM, 0);
  return fd < 0 ? -1 : as_result(connect(fd, (void *)&to, sizeof to));
}
static long raw_socket(char **argv) { return as_result(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)); }
static long packet_socket(char **argv) { return as_result(socket(AF_PACKET, SOCK_RAW, 0)); }
static long alg_socket(char **argv) { return as_result(socket(AF_ALG, SOCK_SEQPACKET, 0)); }
static long unix_at(const char *path, int abstract) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  size_t length = strlen(path);
  if (length > sizeof to.sun_path - 2) { errno = ENAMETOOLONG; return -1; }
  memcpy(to.sun_path + abstract, path, length);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  return as_result(connect(fd, (void *)&to, offsetof(struct sockaddr_un, sun_path) + abstract + length));
}
static long unix_connect(char **argv) { return unix_at(argv[0], 0); }
static long abstract_connect(char **argv) { return unix_at(argv[0], 1); }

static long ring(char **argv) { char params[256] = {0}; return as_result(syscall(SYS_io_uring_setup, 4, params)); }
static long do_bpf(char **argv) { char attr[128] = {0}; return as_result(syscall(SYS_bpf, 0, attr, sizeof attr)); }
static long do_perf(char **argv) {
  char attr[128] = {0};
  ((uint32_t *)attr)[1] = sizeof attr;
  return as_result(syscall(SYS_perf_event_open, attr, 0, -1, -1, 0));
}
static long do_uffd(char **argv) { return as_result(syscall(SYS_userfaultfd, 0)); }
static long do_module(char **argv) { return as_result(syscall(SYS_init_module, "x", 1, "")); }
static long do_kexec(char **argv) { return as_result(syscall(SYS_kexec_load, 0, 0, NULL, 0)); }
static long do_reboot(char **argv) { return as_result(syscall(SYS_reboot, 0xfee1dead, 0x28121969, 0, NULL)); }
static long do_swapoff(char **argv) { return as_result(syscall(SYS_swapoff, "/none")); }
static long key_session(char **argv) { return as_result(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1)); }
static long key_add(char **argv) { return as_result(syscall(SYS_add_key, "user", "x", "y", 1, KEY_SPEC_PROCESS_KEYRING)); }
static long key_request(char **argv) { return as_result(syscall(SYS_request_key, "user", "x", NULL, 0)); }
static long set_clock(char **argv) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return as_result(clock_settime(CLOCK_REALTIME, &now));
}
static long set_host(char **argv) { return as_result(sethostname("escaped", 7)); }
static long do_syslog(char **argv) { char text[64]; return as_result(syscall(SYS_syslog, 3, text, sizeof text)); }
static long do_iopl(char **argv) { return as_result(syscall(SYS_iopl, 3)); }
static long do_acct(char **argv) { return as_result(acct(NULL)); }

static long be_root(char **argv) { return as_result(setresuid(0, 0, 0)); }
static long be_root_group(char **argv) { return as_result(setresgid(0, 0, 0)); }
static long join_groups(char **argv) { gid_t group = 0; return as_result(setgroups(1, &group)); }
static long take_priority(char **argv) { return as_result(setpriority(PRIO_PROCESS, 0, -20)); }
static long realtime(char **argv) { struct sched_param p = {.sched_priority = 1}; return as_result(sched_setscheduler(0, SCHED_FIFO, &p)); }
static long raise_nofile(char **argv) { struct rlimit r = {1 << 18, 1 << 18}; return as_result(setrlimit(RLIMIT_NOFILE, &r)); }
static long add_ambient(char **argv) { return as_result(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0)); }
static long drop_nnp(char **argv) { return as_result(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)); }

static long memfd_exec(char **argv) {
  int fd = memfd_create("x", 0);
  int self = open("/proc/self/exe", O_RDONLY);
  char buffer[65536];
  ssize_t n;
  if (self < 0) self = open(argv[0], O_RDONLY);
  if (fd < 0 || self < 0) return -1;
  while ((n = read(self, buffer, sizeof buffer)) > 0) if (write(fd, buffer, n) != n) return -1;
  pid_t child = fork();
  if (child == 0) {
    char *args[] = {"x", "open-read", "/etc/shadow", NULL}, *env[] = {NULL};
    fexecve(fd, args, env);
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  errno = EACCES;
  return WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 0 : -1;
}
static long push_tty(char **argv) {
  int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0) return -1;
  char c = 'x';
  grantpt(master);
  unlockpt(master);
  int slave = open(ptsname(master) ? ptsname(master) : "", O_RDWR | O_NOCTTY);
  return as_result(ioctl(slave < 0 ? master : slave, TIOCSTI, &c));
}
static long shm_of_host(char **argv) { return as_result(shmget(atoi(argv[0]), 0, 0)); }
static long mq_of_host(char **argv) { return as_result(mq_open(argv[0], O_RDONLY)); }

static const struct { const char *name; attempt_fn run; } attempts[] = {
    {"open-read", open_read}, {"open-rdwr", open_only}, {"create", create_file}, {"append", append_file},
    {"list", list_dir}, {"mknod-char", make_node_char}, {"mknod-block", make_node_block}, {"hard-link", hard_link},
    {"open-by-handle", handle_open}, {"mount-tmpfs", do_mount_tmpfs}, {"mount-bind", do_mount_bind},
    {"mount-proc", do_mount_proc}, {"umount", do_umount}, {"remount-rw", do_remount}, {"fsopen", do_fsopen},
    {"open-tree", do_open_tree}, {"pivot-root", do_pivot}, {"chroot", do_chroot}, {"unshare-user", unshare_user},
    {"unshare-mount", unshare_mount}, {"unshare-net", unshare_net}, {"unshare-pid", unshare_pid},
    {"unshare-cgroup", unshare_cgroup}, {"clone-user", clone_user}, {"clone3-user", clone3_user},
    {"setns", join_ns}, {"ptrace-attach", trace_attach}, {"ptrace-seize", trace_seize}, {"ptrace-me", trace_me},
    {"vm-read", vm_read}, {"vm-write", vm_write}, {"pidfd-getfd", pidfd_steal}, {"kill", send_kill},
    {"kill-probe", send_probe}, {"prlimit", raise_limit_of}, {"tcp-connect", tcp_connect},
    {"tcp6-connect", tcp6_connect}, {"socket-raw", raw_socket}, {"socket-packet", packet_socket},
    {"socket-alg", alg_socket}, {"unix-connect", unix_connect}, {"abstract-connect", abstract_connect},
    {"io-uring", ring}, {"bpf", do_bpf}, {"perf", do_perf}, {"userfaultfd", do_uffd}, {"init-module", do_module},
    {"kexec", do_kexec}, {"reboot", do_reboot}, {"swapoff", do_swapoff}, {"keyctl", key_session},
    {"add-key", key_add}, {"request-key", key_request}, {"clock-set", set_clock}, {"hostname", set_host},
    {"syslog", do_syslog}, {"iopl", do_iopl}, {"acct", do_acct}, {"setuid-root", be_root},
    {"setgid-root", be_root_group}, {"setgroups", join_groups}, {"nice", take_priority}, {"realtime", realtime},
    {"rlimit-raise", raise_nofile}, {"ambient-cap", add_ambient}, {"nnp-off", drop_nnp}, {"memfd-exec", memfd_exec},
    {"tiocsti", push_tty}, {"sysv-shm", shm_of_host}, {"posix-mq", mq_of_host},
};

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
    if (strcmp(attempts[i].name, argv[1]) != 0) continue;
    errno = 0;
    long result = attempts[i].run(argv + 2);
    if (result >= 0) { puts("ESCAPED"); return 1; }
    printf("BLOCKED %s\n", strerrorname_np(errno) ? strerrorname_np(errno) : "?");
    return 0;
  }
  return 2;
}
