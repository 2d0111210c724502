/* What programs do with io_uring, without liburing's headers, which are a package apart.
 *
 *   rings serve                     a server that has nothing else: it accepts, receives and sends by a ring
 *   rings fixed                     the same, with its listening socket among the registered files
 *   rings connected ADDRESS PORT    a ring on a connection that was made by a call, which then goes on by calls
 *   rings file PATH ADDRESS PORT    a ring for a file; the connection is served by calls
 *   rings child ADDRESS PORT        a forked child uses its parent's ring for a server; a ring closes a connection
 *   rings bound ADDRESS             a ring on a listening socket at an address of paths
 *   rings epoll ADDRESS PORT        an epoll that a ring adds to and takes from
 *   rings datagrams                 a ring on a datagram socket
 *   rings threads ADDRESS PORT      many rings at once, and entries that change while they are looked at
 *   rings library                   the library's own ways to a ring (-DLIBURING)
 *   rings refusals                  what is not to be had
 *
 * By `syscall`; with -DLIBURING by the library's own calls; with -DDIRECT by instructions of its own, as with liburing
 * linked statically. Says what came of it, and stays. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds)                                                                                                   \
    if (!(holds)) {                                                                                                    \
        fprintf(stderr, "line %d: ", __LINE__);                                                                        \
        perror(#holds);                                                                                                \
        exit(1);                                                                                                       \
    }

#if defined(LIBURING)
int io_uring_setup(unsigned entries, void *parameters);
int io_uring_enter(unsigned fd, unsigned to_submit, unsigned least, unsigned flags, sigset_t *set);
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
void *io_uring_get_probe(void);
int io_uring_register(unsigned fd, unsigned operation, const void *argument, unsigned count);

static long result_of(long result) {
    if (result < 0)
        errno = -result;
    return result < 0 ? -1 : result;
}
#define SETUP(entries, parameters) result_of(io_uring_setup(entries, parameters))
#define ENTER_AT(fd, submit, least, flags) result_of(io_uring_enter(fd, submit, least, flags, NULL))
#define REGISTER(operation, argument, count) result_of(io_uring_register(ring, operation, argument, count))
#else
#if defined(DIRECT)
static long call(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result < 0)
        errno = -result;
    return result < 0 ? -1 : result;
}
#else
#define call syscall
#endif
#define SETUP(entries, parameters) call(SYS_io_uring_setup, (long)(entries), (long)(parameters), 0L, 0L, 0L, 0L)
#define ENTER_AT(fd, submit, least, flags)                                                                             \
    call(SYS_io_uring_enter, (long)(fd), (long)(submit), (long)(least), (long)(flags), 0L, 0L)
#define REGISTER(operation, argument, count)                                                                           \
    call(SYS_io_uring_register, (long)ring, (long)(operation), (long)(argument), (long)(count), 0L, 0L)
#endif

#define ENTER(submit, least, flags) ENTER_AT(ring, submit, least, flags)

static struct io_uring_params parameters;
static int ring;
static char *queues;
static struct io_uring_sqe *entries;

static unsigned *at(unsigned offset) {
    return (unsigned *)(queues + offset);
}

static void make_ring(void) {
    ring = SETUP(8, &parameters);
    CHECK(ring >= 0 && parameters.features & IORING_FEAT_SINGLE_MMAP);
    size_t len = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    queues = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    CHECK(queues != MAP_FAILED);
    entries = mmap(NULL, parameters.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                   IORING_OFF_SQES);
    CHECK(entries != MAP_FAILED);
}

static void submit(int operation, int flags, int fd, const void *bytes, unsigned len) {
    unsigned tail = *at(parameters.sq_off.tail), place = tail & *at(parameters.sq_off.ring_mask);
    struct io_uring_sqe *entry = &entries[place];
    memset(entry, 0, sizeof *entry);
    entry->opcode = operation;
    entry->flags = flags;
    entry->fd = fd;
    entry->addr = (unsigned long)bytes;
    entry->len = len;
    at(parameters.sq_off.array)[place] = place;
    __atomic_store_n(at(parameters.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    CHECK(ENTER(1, 0, 0) == 1);
}

static int finish(void) {
    CHECK(ENTER(0, 1, IORING_ENTER_GETEVENTS) == 0);
    unsigned head = *at(parameters.cq_off.head);
    CHECK(__atomic_load_n(at(parameters.cq_off.tail), __ATOMIC_ACQUIRE) == head + 1);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(queues + parameters.cq_off.cqes);
    int result = done[head & *at(parameters.cq_off.ring_mask)].res;
    __atomic_store_n(at(parameters.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return result;
}

/* One operation, to its end. */
static int operate(int operation, int fd, const void *bytes, unsigned len) {
    submit(operation, 0, fd, bytes, len);
    return finish();
}

static void say(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

static void serve(int fixed) {
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t name_len = sizeof name;
    int listening = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), again = dup(listening);
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 1) == 0);
    if (fixed) {
        int files[] = {-1, listening};
        CHECK(REGISTER(IORING_REGISTER_FILES, files, 2) == 0);
        submit(IORING_OP_ACCEPT, IOSQE_FIXED_FILE, 1, NULL, 0);
    } else {
        submit(IORING_OP_ACCEPT, 0, listening, NULL, 0);
    }
    CHECK(getsockname(again, (struct sockaddr *)&name, &name_len) == 0 && name.sin_port != 0);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    int accepted = finish();
    CHECK(accepted >= 0);
    CHECK(write(client, "hello", 5) == 5);
    char bytes[8];
    CHECK(operate(IORING_OP_RECV, accepted, bytes, sizeof bytes) == 5);
    CHECK(operate(IORING_OP_SEND, accepted, bytes, 5) == 5);
    char back[8] = "";
    CHECK(read(client, back, sizeof back) == 5);
    CHECK(operate(IORING_OP_CLOSE, accepted, NULL, 0) == 0 && read(client, back + 5, 1) == 0);
    close(client);
    printf("back: %s\n", back);
    fflush(stdout);
}

static int connected(char **words) {
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    CHECK(inet_aton(words[0], &peer.sin_addr));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&peer, sizeof peer) == 0);
    return fd;
}

static void ask(int fd) {
    char answer[5];
    CHECK(write(fd, "hello", 5) == 5);
    CHECK(recv(fd, answer, 5, MSG_WAITALL) == 5 && memcmp(answer, "hello", 5) == 0);
}

static void on_connected(char **words) {
    int fd = connected(words);
    char bytes[8];
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == -ENOTCONN);
    CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == -EPIPE);
    ask(fd);
    say("goes on");
}

static void beside_file(const char *path, char **words) {
    int fd = connected(words), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    for (int i = 0; i < 3; i++) {
        char bytes[8] = "";
        CHECK(operate(IORING_OP_WRITE, file, "kept", 4) == 4 && operate(IORING_OP_FSYNC, file, NULL, 0) == 0);
        CHECK(operate(IORING_OP_READ, file, bytes, sizeof bytes) == 4 && memcmp(bytes, "kept", 4) == 0);
        ask(fd);
    }
    say("kept");
}

static void in_child(char **words) {
    int fd = connected(words);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        serve(0);
        ask(fd); /* what it shares with its parent is on paths as before */
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    ask(fd);
    /* A number that a ring has closed is another socket's. */
    CHECK(operate(IORING_OP_CLOSE, fd, NULL, 0) == 0 && fcntl(fd, F_GETFD) < 0 && errno == EBADF);
    CHECK(connected(words) == fd);
    ask(fd);
    /* And that of a closed ring is a file's, then another ring's. */
    int old = ring, duplicate = dup(ring);
    close(ring);
    CHECK(open("/dev/null", O_RDONLY) == old);
    ring = duplicate;
    CHECK(operate(IORING_OP_NOP, -1, NULL, 0) == 0);
    close(duplicate);
    close(old);
    make_ring();
    CHECK(operate(IORING_OP_NOP, -1, NULL, 0) == 0);
    ask(fd);
    say("all right");
}

static void at_address(const char *address) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(7300)};
    CHECK(inet_aton(address, &name.sin_addr));
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 1) == 0);
    CHECK(operate(IORING_OP_ACCEPT, listening, NULL, 0) == -EINVAL);
    say("listens");
    int accepted = accept(listening, NULL, NULL);
    CHECK(accepted >= 0 && write(accepted, "hello", 5) == 5);
}

static void refusals(void) {
    struct {
        unsigned flags;
        int errno_is;
    } of_setup[] = {
        {IORING_SETUP_SQPOLL, EPERM},
        {1 << 14, EINVAL}, /* IORING_SETUP_NO_MMAP */
        {1u << 31, EINVAL},
    };
    for (unsigned i = 0; i < 3; i++) {
        struct io_uring_params asked = {.flags = of_setup[i].flags};
        CHECK(SETUP(8, &asked) == -1 && errno == of_setup[i].errno_is);
    }
    struct io_uring_rsrc_update self = {.offset = -1, .data = ring};
    CHECK(REGISTER(20, &self, 1) == -1 && errno == EINVAL); /* IORING_REGISTER_RING_FDS */
    CHECK(ENTER(0, 0, 1 << 4) == -1 && errno == EINVAL);    /* IORING_ENTER_REGISTERED_RING */
    struct io_uring_params wide = {.flags = 1 << 10}; /* IORING_SETUP_SQE128 */
    CHECK(SETUP(8, &wide) >= 0);
    int mine = ring;
    ring = open("/dev/null", O_RDONLY);
    CHECK(ENTER(1, 0, 0) == -1 && errno == EOPNOTSUPP);
    ring = mine;
    say("refused");
}

static void datagrams(void) {
    struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_port = htons(7400)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7400), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET6, SOCK_DGRAM, 0), sender = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
    char bytes[8] = "";
    submit(IORING_OP_RECV, 0, fd, bytes, sizeof bytes);
    CHECK(sendto(sender, "hello", 5, 0, (struct sockaddr *)&to, sizeof to) == 5);
    CHECK(finish() == 5);
    printf("back: %s\n", bytes);
    fflush(stdout);
}

static int control(int epoll, int operation, int fd, struct epoll_event *event) {
    unsigned tail = *at(parameters.sq_off.tail), place = tail & *at(parameters.sq_off.ring_mask);
    struct io_uring_sqe *entry = &entries[place];
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_EPOLL_CTL;
    entry->fd = epoll;
    entry->len = operation;
    entry->off = fd;
    entry->addr = (unsigned long)event;
    at(parameters.sq_off.array)[place] = place;
    __atomic_store_n(at(parameters.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    CHECK(ENTER(1, 0, 0) == 1);
    return finish();
}

static void watched(char **words) {
    int fd = connected(words), epoll = epoll_create1(0), pipes[2];
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = 77}}, got;
    CHECK(control(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(control(epoll, EPOLL_CTL_ADD, fd, &event) == -EEXIST);
    CHECK(epoll_wait(epoll, &got, 1, 0) == 0);
    CHECK(write(fd, "hello", 5) == 5);
    CHECK(epoll_wait(epoll, &got, 1, 15000) == 1 && got.events == EPOLLIN && got.data.u64 == 77);
    CHECK(control(epoll, EPOLL_CTL_DEL, fd, NULL) == 0 && epoll_wait(epoll, &got, 1, 0) == 0);
    char bytes[5];
    CHECK(recv(fd, bytes, 5, MSG_WAITALL) == 5);
    /* What is not ours, too. */
    CHECK(pipe(pipes) == 0 && control(epoll, EPOLL_CTL_ADD, pipes[0], &event) == 0 && write(pipes[1], "x", 1) == 1);
    CHECK(epoll_wait(epoll, &got, 1, 15000) == 1 && got.data.u64 == 77);
    say("watched");
}

static int on_paths, ends;

/* What is submitted is now one thing, now another; and more of it than there is. */
static void *scribble(void *none) {
    for (unsigned i = 0; !__atomic_load_n(&ends, __ATOMIC_RELAXED); i++) {
        volatile struct io_uring_sqe *entry = &entries[i % parameters.sq_entries];
        entry->fd = i % 3 ? on_paths : -1;
        entry->opcode = i % 2 ? IORING_OP_RECV : IORING_OP_NOP;
        ((volatile unsigned *)at(parameters.sq_off.array))[i % 5] = i % 7 ? i % 5 : i * 0x9e3779b9u;
    }
    return none;
}

static void *make_and_close(void *none) {
    for (int i = 0; i < 300; i++) {
        struct io_uring_params asked = {0};
        int mine = SETUP(4, &asked);
        CHECK(mine >= 0);
        int other = dup(mine);
        CHECK(other >= 0 && close(mine) == 0 && close(other) == 0);
    }
    return none;
}

static void *enter_whatever(void *none) {
    /* Numbers that are rings, or were, of the threads beside. */
    for (int i = 0; i < 3000; i++)
        ENTER_AT(ring + 1 + i % 8, 1, 0, 0);
    return none;
}

static void threads(char **words) {
    pthread_t all[6];
    on_paths = connected(words);
    for (int i = 0; i < 6; i++)
        CHECK(pthread_create(&all[i], NULL, i == 0 ? scribble : i < 4 ? make_and_close : enter_whatever, NULL) == 0);
    for (int i = 0; i < 3000; i++) {
        __atomic_store_n(at(parameters.sq_off.tail), *at(parameters.sq_off.head) + 1 + i % 4, __ATOMIC_RELEASE);
        ENTER(1 + i % 4, 0, 0);
        ENTER(0, 0, IORING_ENTER_GETEVENTS);
        __atomic_store_n(at(parameters.cq_off.head), *at(parameters.cq_off.tail), __ATOMIC_RELEASE);
    }
    for (int i = 1; i < 6; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    __atomic_store_n(&ends, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(all[0], NULL) == 0);
    ask(on_paths);
    say("all right");
}

static void library(void) {
#if defined(LIBURING)
    static char memory[1024];
    CHECK(io_uring_queue_init(8, memory, 0) == 0);
    CHECK(io_uring_get_probe() != NULL);
#endif
    say("has rings");
}

int main(int count, char **words) {
    CHECK(count > 1);
    make_ring();
    if (!strcmp(words[1], "serve") || !strcmp(words[1], "fixed"))
        serve(words[1][0] == 'f');
    else if (!strcmp(words[1], "connected"))
        on_connected(words + 2);
    else if (!strcmp(words[1], "file"))
        beside_file(words[2], words + 3);
    else if (!strcmp(words[1], "child"))
        in_child(words + 2);
    else if (!strcmp(words[1], "bound"))
        at_address(words[2]);
    else if (!strcmp(words[1], "datagrams"))
        datagrams();
    else if (!strcmp(words[1], "epoll"))
        watched(words + 2);
    else if (!strcmp(words[1], "threads"))
        threads(words + 2);
    else if (!strcmp(words[1], "library"))
        library();
    else
        refusals();
    pause();
}
