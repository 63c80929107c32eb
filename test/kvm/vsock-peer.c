// Runs in a guest: takes connections on the vsock port ARGV[1], one after the other. It waits in read() for one byte,
// sends it back, and adds to the file ARGV[2] what happens: "listening", "accepted", and how the reading ended: "byte",
// "end" or the number of the error.
#include <errno.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *path, const char *word, int number) {
  FILE *file = fopen(path, "a");
  if (number == 0)
    fprintf(file, "%s\n", word);
  else
    fprintf(file, "%d\n", number);
  fclose(file);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_port = atoi(argv[1]), .svm_cid = VMADDR_CID_ANY};
  int listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4) != 0) {
    perror("listening");
    return 1;
  }
  note(argv[2], "listening", 0);
  for (;;) {
    int peer = accept(listener, NULL, NULL);
    if (peer < 0) continue;
    note(argv[2], "accepted", 0);
    char byte;
    ssize_t count = read(peer, &byte, 1);
    int failure = count < 0 ? errno : 0;
    if (count == 1 && write(peer, &byte, 1) != 1) failure = errno;
    note(argv[2], count == 1 ? "byte" : "end", failure);
    close(peer);
  }
}
