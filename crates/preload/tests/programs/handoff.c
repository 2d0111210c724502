/* A handoff over exec that has gone through a program without the shim, which has damaged it.
 *
 *     handoff begin STATIC MODE     a connection and an epoll with it, left to STATIC (this program, linked statically)
 *     STATIC damage MODE …          changes the handoff, and leaves it to the first one again
 *     handoff end …                 says what it has of what was left, and whether it has sockets of its own
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Words of a handoff (exec/handoff.rs, epoll/handover.rs). */
enum { VERSION = 1, CONNECTION, MEMORY, BELLS, RECORD = BELLS + 4, COUNT, HEAD, ROOM = 256 };
enum { ITEM = 8 };
static const unsigned EPOLL = 1u << 31;

static void need(int condition, const char *what) {
    if (condition) return;
    perror(what);
    _exit(3);
}
#define NEED(condition) need(condition, #condition)

static void pair(int fds[2]) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(getenv("ADDRESS"))};
    socklen_t len = sizeof name;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    NEED(bind(listening, (struct sockaddr *)&name, len) == 0 && listen(listening, 1) == 0);
    NEED(getsockname(listening, (struct sockaddr *)&name, &len) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    NEED(connect(fds[0], (struct sockaddr *)&name, len) == 0);
    fds[1] = accept(listening, NULL, NULL);
    NEED(fds[1] >= 0 && close(listening) == 0);
}

/* One byte there; 1: it came. */
static int exchanges(int fds[2], int set) {
    char byte = 'x';
    struct epoll_event events[8];
    if (send(fds[0], &byte, 1, MSG_NOSIGNAL) != 1) return 0;
    if (set >= 0) printf("events %d, ", epoll_wait(set, events, 8, 2000));
    return poll(&(struct pollfd){fds[1], POLLIN, 0}, 1, 2000) == 1 && recv(fds[1], &byte, 1, MSG_DONTWAIT) == 1;
}

static void leave(const char *program, const char *role, const char *mode, const int *numbers, int count) {
    char text[16][12], *arguments[20] = {(char *)program, (char *)role, (char *)mode};
    for (int i = 0; i < count; i++) {
        snprintf(text[i], sizeof text[i], "%d", numbers[i]);
        arguments[3 + i] = text[i];
    }
    fflush(stdout);
    execv(program, arguments);
    NEED(!"exec");
}

static int inode(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 ? (int)about.st_ino : 0;
}

static int begin(const char *self, const char *damaging, const char *mode) {
    int numbers[3];
    pair(numbers);
    numbers[2] = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    NEED(epoll_ctl(numbers[2], EPOLL_CTL_ADD, numbers[1], &event) == 0);
    NEED(setenv("DAMAGED", self, 1) == 0);
    leave(damaging, "damage", mode, numbers, 3);
    return 1;
}

/* The words of a handoff, changed; how many. */
static int changed(const char *mode, unsigned *words, int count, const int *numbers) {
    unsigned *pairs = words + HEAD, *item = words + HEAD + 2 * words[COUNT] + 2;
    if (!strcmp(mode, "version")) words[VERSION]++;
    if (!strcmp(mode, "magic")) words[0]++;
    if (!strcmp(mode, "record")) words[RECORD] = ~0u;
    if (!strcmp(mode, "dead")) words[RECORD] = 500;
    if (!strcmp(mode, "low")) words[CONNECTION] = 1;
    if (!strcmp(mode, "same")) words[MEMORY] = words[BELLS];
    if (!strcmp(mode, "closed")) words[BELLS] = 900;
    if (!strcmp(mode, "kinds")) words[CONNECTION] = numbers[0];
    if (!strcmp(mode, "short")) return HEAD - 1;
    if (!strcmp(mode, "cut")) return HEAD + 1;
    if (!strcmp(mode, "descriptors")) {
        unsigned more[] = {
            numbers[0], pairs[1],        /* once more */
            numbers[0], EPOLL,           /* and as an epoll */
            1, pairs[1],                 /* standard output is no socket */
            words[CONNECTION], pairs[1], /* nor is what is ours */
            ~0u, pairs[1], 1 << 30, pairs[1], numbers[1], 1 << 20, 0, ~0u, 1, EPOLL | 1, 1, ~0u >> 1,
        };
        int len = sizeof more / sizeof *more;
        memmove(pairs + 2 * words[COUNT] + len, pairs + 2 * words[COUNT], 4 * (count - HEAD - 2 * words[COUNT]));
        memcpy(pairs + 2 * words[COUNT], more, sizeof more);
        words[COUNT] += len / 2;
        return count + len;
    }
    if (!strcmp(mode, "many")) words[COUNT] = ~0u;
    if (!strcmp(mode, "items")) {
        unsigned more[][ITEM] = {
            {0, item[1], item[2], 1, 9, 0, 0, 0}, {0, item[1], 1u << 31, 1, 9, 0, 0, 0}, {0, item[1], 0, 1, 9, 0, 0, 0},
            {0, ~0u, item[2], 1, 9, 0, 0, 0},     {1, 0, item[2], 1, 9, 0, 0, 0},        {1, 0, ~0u, 1, 9, 0, 0, 0},
            {2, 0, numbers[2] + 1, 1, 9, 0, 0, 5}, {2, 0, 1, 1, 9, 0, 0, 5},             {99, 0, 5, 1, 9, 0, 0, 5},
        };
        memcpy(item + ITEM, more, sizeof more);
        item[-2] = ~0u;
        item[-1] = 1 << 30;
        return count + sizeof more / 4;
    }
    return count;
}

static int damage(const char *mode, char **arguments) {
    static unsigned words[ROOM];
    const char *next = getenv("DAMAGED");
    int numbers[6], file = atoi(getenv("SCOUTLINE_EXEC"));
    for (int i = 0; i < 3; i++) numbers[i] = atoi(arguments[i]);
    int count = pread(file, words, sizeof words, 0) / 4;
    NEED(count > HEAD + 6 && count < ROOM - 100);
    numbers[3] = inode(words[CONNECTION]);
    numbers[4] = inode(words[MEMORY]);
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    NEED(fcntl(file, F_GET_SEALS) == seals);
    count = changed(mode, words, count, numbers);
    close(file);
    file = memfd_create("damaged", MFD_ALLOW_SEALING);
    NEED(file >= 3 && write(file, words, 4 * count) == 4 * count);
    if (strcmp(mode, "unsealed")) NEED(fcntl(file, F_ADD_SEALS, seals) == 0);
    numbers[5] = inode(file);
    char text[12];
    snprintf(text, sizeof text, "%d", file);
    setenv("SCOUTLINE_EXEC", !strcmp(mode, "number") ? "0" : !strcmp(mode, "text") ? "4711x" : text, 1);
    if (!strcmp(mode, "twice")) {
        int status;
        pid_t child = fork();
        if (child == 0) leave(next, "end", mode, numbers, 6);
        NEED(waitpid(child, &status, 0) == child && status == 0);
    }
    leave(next, "end", mode, numbers, 6);
    return 1;
}

static int end(char **arguments) {
    int numbers[6], fresh[2], left = 0;
    for (int i = 0; i < 6; i++) numbers[i] = atoi(arguments[i]);
    printf("%s, ", exchanges(numbers, numbers[2]) ? "goes on" : "lost");
    pair(fresh);
    printf("%s, ", exchanges(fresh, -1) ? "has its own" : "has none");
    /* Of the connection, the region, and the handoff itself. */
    for (int fd = 3; fd < 8192; fd++)
        for (int i = 3; i < 6; i++) left += inode(fd) == numbers[i];
    printf("left %d\n", left);
    return 0;
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOFBF, 4096);
    if (count == 4 && !strcmp(arguments[1], "begin")) return begin(arguments[0], arguments[2], arguments[3]);
    if (count == 6 && !strcmp(arguments[1], "damage")) return damage(arguments[2], arguments + 3);
    if (count == 9 && !strcmp(arguments[1], "end")) return end(arguments + 3);
    return 2;
}
