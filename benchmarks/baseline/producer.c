/* Writes MIB mebibytes to standard output, BLOCK bytes at a time: a task that does nothing but print. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: producer MIB BLOCK\n");
    return 2;
  }
  long long left = atoll(argv[1]) << 20;
  size_t block = strtoul(argv[2], NULL, 10);
  char *buffer = malloc(block);
  if (block == 0 || buffer == NULL) {
    return 2;
  }
  for (size_t i = 0; i < block; i++) {
    buffer[i] = i % 80 == 79 || i + 1 == block ? '\n' : 'a' + i % 26;
  }
  while (left > 0) {
    ssize_t count = write(1, buffer, left < (long long)block ? (size_t)left : block);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      perror("write");
      return 1;
    }
    left -= count;
  }
  return 0;
}
