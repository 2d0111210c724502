// A signal handler that sends on the socket whose send it has interrupted in the midst of its copy. The signal comes
// from the data themselves, which lie on a page that may not be read. Arguments: address and port of an echo server.
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static int fd;
static char *pages;
static int nested;

static void on_fault(int number) {
    (void)number;
    nested = send(fd, "x", 1, 0) < 0 ? errno : 0;
    mprotect(pages, 8192, PROT_READ | PROT_WRITE);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &to.sin_addr);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        return 3;
    pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(pages, 'a', 8192);
    mprotect(pages + 4096, 4096, PROT_NONE);
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    long sent = send(fd, pages + 4000, 200, 0);
    printf("within: %s\nthen: %ld\n", nested == EAGAIN ? "EAGAIN" : "another", sent);
    printf("next: %ld\n", (long)send(fd, "y", 1, 0));
    char back[256];
    printf("back: %ld\n", (long)recv(fd, back, 201, MSG_WAITALL));
    return 0;
}
