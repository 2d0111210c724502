/* Parts of vectors that are nowhere: EFAULT where something is copied there, and no matter where nothing is. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define T(call)                                                                             \
    do {                                                                                    \
        errno = 0;                                                                          \
        long result = (call);                                                               \
        printf("%s: %ld %s\n", #call, result, result < 0 ? strerror(errno) : "");           \
    } while (0)
#define NEED(call)                                                                          \
    do {                                                                                    \
        if (!(call)) {                                                                      \
            perror(#call);                                                                  \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static struct sockaddr_in bound(int fd) {
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t len = sizeof name;
    NEED(inet_aton(getenv("ADDRESS"), &name.sin_addr));
    NEED(!bind(fd, (struct sockaddr *)&name, sizeof name));
    NEED(!getsockname(fd, (struct sockaddr *)&name, &len));
    return name;
}

/* So many bytes, or a datagram of as many, have come. */
static void await(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    NEED(poll(&one, 1, 10000) == 1);
}

static char here[10], large[64];
static struct iovec parts[2] = {{here, 10}, {NULL, 10}};

static void datagrams(void) {
    int from = socket(AF_INET, SOCK_DGRAM, 0), to = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in name = bound(to);
    bound(from);
    struct msghdr both = {.msg_iov = parts, .msg_iovlen = 2};
    T(send(from, NULL, 4, 0)); /* it has no peer, whatever it sends */
    NEED(!connect(from, (struct sockaddr *)&name, sizeof name));
    T(send(from, NULL, 4, 0));
    NEED(send(from, "0123456789", 10, 0) == 10);
    await(to);
    T(recvmsg(to, &both, MSG_PEEK));
    T(recvmsg(to, &both, 0));
    NEED(send(from, "0123456789ab", 12, 0) == 12);
    await(to);
    T(recvmsg(to, &both, MSG_PEEK));
    T(recvmsg(to, &both, 0));
    T(recv(to, large, sizeof large, MSG_DONTWAIT)); /* it is lost */

    /* What is held back goes with what cannot be added. */
    T(send(from, "ab", 2, MSG_MORE));
    T(send(from, NULL, 2, MSG_MORE));
    T(send(from, "cdc", 3, 0));
    await(to);
    T(recv(to, large, sizeof large, 0));

    /* Of several the first that fails says so with the next call. */
    T(recvmmsg(to, NULL, 0, 0, NULL));
    struct mmsghdr two[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                             {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    NEED(send(from, "1", 1, 0) == 1 && send(from, "22", 2, 0) == 2 && send(from, "333", 3, 0) == 3);
    T(recvmmsg(to, two, 2, 0, NULL));
    T(recv(to, large, sizeof large, 0));
    T(recv(to, large, sizeof large, 0));
    T(recvmmsg(to, two, 1, MSG_DONTWAIT, NULL));
    NEED(send(from, "1", 1, 0) == 1);
    await(to);
    two[1].msg_hdr.msg_iov = parts;
    T(recvmmsg(to, two, 2, MSG_DONTWAIT, NULL));
    T(recv(to, large, sizeof large, MSG_DONTWAIT)); /* that there was no more is no error */
    close(from);
    close(to);
}

static void streams(void) {
    int listening = socket(AF_INET, SOCK_STREAM, 0), from = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in name = bound(listening);
    NEED(!listen(listening, 1));
    NEED(!connect(from, (struct sockaddr *)&name, sizeof name));
    int to = accept(listening, NULL, NULL);
    NEED(to >= 0);
    NEED(write(from, "0123456789", 10) == 10);
    await(to);
    T(readv(to, parts, 2));
    NEED(write(from, "0123456789ab", 12) == 12);
    await(to);
    T(readv(to, parts, 2));
    T(recv(to, large, sizeof large, 0));
    T(writev(from, parts, 2));
    close(from);
    close(to);
    close(listening);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    datagrams();
    streams();
}
