/* A listening socket that goes to another program (SCM_RIGHTS).
 *
 *     listener_passing give PORT PATH       listens at PORT, for few connections at a time, and passes that at PATH
 *     listener_passing share PORT PATH      the same, and goes on serving there itself
 *     listener_passing take PATH COUNT      takes COUNT connections and keeps them, then returns what each one says
 *     listener_passing serve PATH COUNT     returns what COUNT connections say, one after another
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NEED(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)
#define BACKLOG 4

static int at_path(const char *path, struct sockaddr_un *name) {
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    strcpy(name->sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    NEED(fd >= 0);
    return fd;
}

static void answer(int fd) {
    char said[64];
    ssize_t len = read(fd, said, sizeof said);
    NEED(len > 0 && write(fd, said, len) == len);
    close(fd);
}

static void give(int port, const char *path, int goes_on) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    NEED(listener >= 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
    NEED(bind(listener, (struct sockaddr *)&name, sizeof name) == 0);
    NEED(listen(listener, BACKLOG) == 0);

    struct sockaddr_un local;
    int meeting = at_path(path, &local);
    NEED(bind(meeting, (struct sockaddr *)&local, sizeof local) == 0 && listen(meeting, 1) == 0);
    puts("ready");
    fflush(stdout);
    int taker = accept(meeting, 0, 0);
    NEED(taker >= 0);
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &listener, sizeof listener);
    NEED(sendmsg(taker, &message, 0) == 1);
    for (int fd; goes_on && (fd = accept(listener, 0, 0)) >= 0;) answer(fd);
    /* It is the taker's alone from then on. */
    close(listener);
    NEED(read(taker, &byte, 1) == 0);
}

static void take(const char *path, int count, int keeps) {
    struct sockaddr_un local;
    int giver = at_path(path, &local), listener;
    NEED(connect(giver, (struct sockaddr *)&local, sizeof local) == 0);
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte;
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    NEED(recvmsg(giver, &message, 0) == 1);
    memcpy(&listener, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof listener);
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < count && !keeps; i++) {
        int fd = accept(listener, 0, 0);
        NEED(fd >= 0);
        answer(fd);
    }
    if (!keeps) return;
    int *taken = calloc(count, sizeof *taken);
    for (int i = 0; i < count; i++) NEED((taken[i] = accept(listener, 0, 0)) >= 0);
    puts("taken");
    fflush(stdout);
    for (int i = 0; i < count; i++) answer(taken[i]);
}

int main(int count, char **words) {
    NEED(count == 4);
    int gives = !strcmp(words[1], "give"), shares = !strcmp(words[1], "share");
    if (gives || shares) give(atoi(words[2]), words[3], shares);
    else take(words[2], atoi(words[3]), !strcmp(words[1], "take"));
    return 0;
}
