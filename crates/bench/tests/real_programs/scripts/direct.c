/* System calls by number on a socket, and io_uring by three ways.
 *
 *   direct ADDRESS PORT     an echo server of the other host
 *
 * Prints "ready" when all was as it should be, and stays. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            printf("line %d: %s: errno %d %s\n", __LINE__, #what, errno, strerror(errno)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static char parameters[120], ring[1024];

/* From liburing, of which the headers are a package apart. */
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
void *io_uring_get_probe(void);

/* Past the C library, as liburing does it inside. */
static long directly(long number, long a, const void *b, long c) {
    long result;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x2 __asm__("x2") = c;
    register const void *x1 __asm__("x1") = b;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

int main(int count, char **words) {
    CHECK(count == 3);
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    CHECK(inet_aton(words[1], &peer.sin_addr));
    long fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(syscall(SYS_connect, fd, &peer, sizeof peer) == 0);
    struct sockaddr_in found;
    socklen_t len = sizeof found;
    CHECK(syscall(SYS_getpeername, fd, &found, &len) == 0 && found.sin_port == peer.sin_port);
    char answer[5];
    CHECK(syscall(SYS_write, fd, "hello", 5L) == 5);
    for (long got = 0, more; got < 5; got += more)
        CHECK((more = syscall(SYS_read, fd, answer + got, 5 - got)) > 0);
    CHECK(memcmp(answer, "hello", 5) == 0);
    CHECK(syscall(SYS_sendto, fd, "world", 5L, 0L, NULL, 0L) == 5);
    for (long got = 0, more; got < 5; got += more)
        CHECK((more = syscall(SYS_recvfrom, fd, answer + got, 5 - got, 0L, NULL, NULL)) > 0);
    CHECK(memcmp(answer, "world", 5) == 0);
    /* By calls of our own making; a read that may come short is made once. */
    CHECK(directly(SYS_write, fd, "again", 5) == 5);
    CHECK(directly(SYS_read, fd, answer, 1) == 1 && answer[0] == 'a');
    /* What is no socket of ours goes where it went. */
    CHECK(syscall(SYS_getpid) == getpid());
    CHECK(syscall(SYS_close, 999L) < 0 && errno == EBADF);
    for (int i = 0; i < 3; i++)
        CHECK(syscall(SYS_io_uring_setup, 8L, parameters) < 0 && errno == ENOSYS);
    CHECK(directly(SYS_io_uring_setup, 8, parameters, 0) == -ENOSYS);
    CHECK(io_uring_queue_init(8, ring, 0) == -ENOSYS);
    CHECK(io_uring_get_probe() == NULL);
    printf("ready\n");
    fflush(stdout);
    pause();
    return 0;
}
