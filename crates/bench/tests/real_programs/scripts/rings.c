/* What programs do with io_uring, without liburing's headers, which are a package apart.
 *
 *   rings serve                     a server that has nothing else: it accepts, receives and sends by a ring
 *   rings fixed                     the same, with its listening socket among the registered files
 *   rings connected ADDRESS PORT    a ring on a connection that was made by a call, and calls beside it
 *   rings connects ADDRESS PORT X   connections that a ring makes, and one to X, where nobody is
 *   rings bulk ADDRESS PORT         much of it both ways at once, by two threads' rings
 *   rings ends ADDRESS PORT         connections that end in every way (what the peer does: rings.rs)
 *   rings accepted ADDRESS          a ring on connections that were accepted by calls, at an address of paths
 *   rings file PATH ADDRESS PORT    a ring for a file; the connection is served by calls
 *   rings child ADDRESS PORT        a forked child uses its parent's ring for a server; a ring closes a connection
 *   rings bound ADDRESS             a ring on a listening socket at an address of paths
 *   rings prefork ADDRESS           and in a child that has its own ring
 *   rings images ADDRESS            and in the next image
 *   rings blocked ADDRESS           operations that wait when the daemon ends
 *   rings opens ADDRESS PORT        and one that connects to where nobody is
 *   rings stolen ADDRESS PORT       another process comes for a connection that a ring has given up
 *   rings strangers ADDRESS         and to a listening socket
 *   rings starved ADDRESS           and one that came when there was no descriptor
 *   rings names ADDRESS             peers' names, by many threads' rings
 *   rings slow ADDRESS PORT         exits with much under way to a peer that reads slowly
 *   rings unread ADDRESS PORT       closes with what it has not read, and does not
 *   rings copies ADDRESS            children that are made while connections come
 *   rings taken ADDRESS PORT        a program that takes the library's numbers for itself
 *   rings asleep ADDRESS PORT       threads that sleep in calls on sockets that a ring names
 *   rings epoll ADDRESS PORT        an epoll that a ring adds to and takes from
 *   rings datagrams ADDRESS PORT    a ring on datagram sockets without a peer, to four echoes from PORT on
 *   rings parcels ADDRESS PORT      and on one that is connected, to an echo
 *   rings threads ADDRESS PORT      many rings at once, and entries that change while they are looked at
 *   rings race                      two threads' rings name the same socket in the same moment
 *   rings forks                     children of a process whose threads are at their rings
 *   rings failed ADDRESS            a ring connects a socket that a call could not connect
 *   rings library                   the library's own ways to a ring (-DLIBURING)
 *   rings image                     a ring on a listening socket of the image before
 *   rings arguments                 what `io_uring_enter` is given beside
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
#include <netinet/tcp.h>
#include <dirent.h>
#include <poll.h>
#include <stddef.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int last_result;

#define CHECK(holds)                                                                                                   \
    if (!(holds)) {                                                                                                    \
        fprintf(stderr, "line %d, last result %d: ", __LINE__, last_result);                                           \
        perror(#holds);                                                                                                \
        exit(1);                                                                                                       \
    }

#if defined(LIBURING)
int io_uring_setup(unsigned entries, void *parameters);
int io_uring_enter2(unsigned fd, unsigned to_submit, unsigned least, unsigned flags, void *argument, size_t len);
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
void *io_uring_get_probe(void);
int io_uring_register(unsigned fd, unsigned operation, const void *argument, unsigned count);

static long result_of(long result) {
    if (result < 0)
        errno = -result;
    return result < 0 ? -1 : result;
}
#define SETUP(entries, parameters) result_of(io_uring_setup(entries, parameters))
#define ENTER_WITH(fd, submit, least, flags, argument, len)                                                            \
    result_of(io_uring_enter2(fd, submit, least, flags, argument, len))
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
#define ENTER_WITH(fd, submit, least, flags, argument, len)                                                            \
    call(SYS_io_uring_enter, (long)(fd), (long)(submit), (long)(least), (long)(flags), (long)(argument), (long)(len))
#define REGISTER(operation, argument, count)                                                                           \
    call(SYS_io_uring_register, (long)ring, (long)(operation), (long)(argument), (long)(count), 0L, 0L)
#endif

#define ENTER_AT(fd, submit, least, flags) ENTER_WITH(fd, submit, least, flags, NULL, 0)
#define ENTER(submit, least, flags) ENTER_AT(ring, submit, least, flags)

/* A thread's own. */
static __thread struct io_uring_params parameters;
static __thread int ring;
static __thread char *queues;
static __thread struct io_uring_sqe *entries;
/* What the next entry is known by, and what that was which is done. */
static __thread unsigned long tag, done_tag;

static unsigned *at(unsigned offset) {
    return (unsigned *)(queues + offset);
}

static size_t queues_len(void) {
    size_t array_end = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
    size_t done_end = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    return array_end > done_end ? array_end : done_end;
}

static void make_ring_with(unsigned count, unsigned flags) {
    memset(&parameters, 0, sizeof parameters);
    parameters.flags = flags;
    ring = SETUP(count, &parameters);
    CHECK(ring >= 0 && parameters.features & IORING_FEAT_SINGLE_MMAP);
    queues = mmap(NULL, queues_len(), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    CHECK(queues != MAP_FAILED);
    entries = mmap(NULL, parameters.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                   IORING_OFF_SQES);
    CHECK(entries != MAP_FAILED);
}

static void make_ring(unsigned count) {
    make_ring_with(count, 0);
}

static void submit_at(int operation, int flags, int fd, const void *bytes, unsigned len, unsigned long offset) {
    unsigned tail = *at(parameters.sq_off.tail), place = tail & *at(parameters.sq_off.ring_mask);
    struct io_uring_sqe *entry = &entries[place];
    memset(entry, 0, sizeof *entry);
    entry->opcode = operation;
    entry->flags = flags;
    entry->fd = fd;
    entry->addr = (unsigned long)bytes;
    entry->len = len;
    entry->off = offset;
    entry->user_data = tag;
    entry->poll32_events = operation == IORING_OP_POLL_ADD ? POLLIN : 0;
    at(parameters.sq_off.array)[place] = place;
    __atomic_store_n(at(parameters.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    CHECK(ENTER(1, 0, 0) == 1);
}

static void submit(int operation, int flags, int fd, const void *bytes, unsigned len) {
    submit_at(operation, flags, fd, bytes, len, 0);
}

/* The result of what was done first. */
static int next(void) {
    unsigned head = *at(parameters.cq_off.head);
    CHECK(__atomic_load_n(at(parameters.cq_off.tail), __ATOMIC_ACQUIRE) != head);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(queues + parameters.cq_off.cqes);
    int result = last_result = done[head & *at(parameters.cq_off.ring_mask)].res;
    done_tag = done[head & *at(parameters.cq_off.ring_mask)].user_data;
    __atomic_store_n(at(parameters.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return result;
}

static int finish(void) {
    long entered;
    do
        entered = ENTER(0, 1, IORING_ENTER_GETEVENTS);
    while (entered < 0 && errno == EINTR); /* by a signal that another thread blocks, and this one ignores */
    CHECK(entered == 0);
    CHECK(__atomic_load_n(at(parameters.cq_off.tail), __ATOMIC_ACQUIRE) == *at(parameters.cq_off.head) + 1);
    return next();
}

/* One operation, to its end. */
static int operate(int operation, int fd, const void *bytes, unsigned len) {
    submit(operation, 0, fd, bytes, len);
    return finish();
}

/* Until the test says so. */
static void await_signal(void) {
    sigset_t told;
    int which;
    sigemptyset(&told);
    sigaddset(&told, SIGUSR1);
    CHECK(sigwait(&told, &which) == 0);
}

static void say(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

/* At any address, and a port that is chosen. */
static int listens(void) {
    struct sockaddr_in name = {.sin_family = AF_INET};
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 1) == 0);
    return listening;
}

static void serve(int fixed) {
    struct sockaddr_in name;
    socklen_t name_len = sizeof name;
    int listening = listens(), client = socket(AF_INET, SOCK_STREAM, 0), again = dup(listening);
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

static unsigned number_of(int fd, int (*which)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    CHECK(which(fd, (struct sockaddr *)&name, &len) == 0 && name.sin_family == AF_INET && len == sizeof name);
    return ntohs(name.sin_port);
}

static int option(int fd, int level, int name) {
    int value;
    socklen_t len = sizeof value;
    CHECK(getsockopt(fd, level, name, &value, &len) == 0);
    return value;
}

static void on_connected(char **words) {
    int fd = connected(words), on = 1;
    unsigned port = number_of(fd, getsockname);
    char bytes[16];
    /* What came before the ring does is not lost. */
    CHECK(write(fd, "early", 5) == 5);
    struct pollfd here = {.fd = fd, .events = POLLIN};
    CHECK(poll(&here, 1, 15000) == 1);
    int twin = dup(fd);
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 5 && memcmp(bytes, "early", 5) == 0);
    CHECK(operate(IORING_OP_SEND, twin, "hello", 5) == 5);
    CHECK(operate(IORING_OP_READ, fd, bytes, sizeof bytes) == 5 && memcmp(bytes, "hello", 5) == 0);
    CHECK(operate(47, fd, "again", 5) == 5); /* IORING_OP_SEND_ZC */
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 5 && memcmp(bytes, "again", 5) == 0);
    ask(fd);
    ask(twin);
    CHECK(number_of(fd, getsockname) == port && number_of(twin, getpeername) == (unsigned)atoi(words[1]));
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 && option(twin, IPPROTO_TCP, TCP_NODELAY) == 1);
    CHECK(option(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET && option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
    CHECK(option(fd, SOL_SOCKET, SO_ERROR) == 0);
    /* One ring waits, another thing is done meanwhile. */
    submit(IORING_OP_RECV, 0, fd, bytes, sizeof bytes);
    CHECK(write(twin, "later", 5) == 5);
    CHECK(finish() == 5 && memcmp(bytes, "later", 5) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ask(fd);
        int other = connected(words);
        CHECK(operate(IORING_OP_SEND, other, "hello", 5) == 5);
        CHECK(operate(IORING_OP_RECV, other, bytes, sizeof bytes) == 5);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    ask(fd);
    say("served");
}

/* By a ring alone. */
static int connected_by_ring(const char *address, int port) {
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_aton(address, &peer.sin_addr));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    submit_at(IORING_OP_CONNECT, 0, fd, &peer, 0, sizeof peer);
    memset(&peer, 0, sizeof peer);
    int result = finish();
    CHECK(result == 0 || close(fd) == 0);
    return result == 0 ? fd : result;
}

/* A socket whose CONNECT has failed connects by another one; under its duplicate's number, too. */
static void again(const char *address, int port) {
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(7999)};
    CHECK(inet_aton(address, &peer.sin_addr));
    char bytes[8];
    int fd = socket(AF_INET, SOCK_STREAM, 0), other = dup(fd);
    for (int i = 0; i < 2; i++) {
        submit_at(IORING_OP_CONNECT, 0, fd, &peer, 0, sizeof peer);
        CHECK(finish() == -ECONNREFUSED);
    }
    peer.sin_port = htons(port);
    submit_at(IORING_OP_CONNECT, 0, other, &peer, 0, sizeof peer);
    CHECK(finish() == 0);
    CHECK(operate(IORING_OP_SEND, fd, "again", 5) == 5);
    CHECK(operate(IORING_OP_RECV, other, bytes, sizeof bytes) == 5 && memcmp(bytes, "again", 5) == 0);
    CHECK(close(fd) == 0 && close(other) == 0);
}

/* No address is this host's. */
static void to_itself(void) {
    char bytes[8];
    int listening = listens(), fd = connected_by_ring("0.0.0.0", number_of(listening, getsockname));
    CHECK(fd >= 0);
    int accepted = accept(listening, NULL, NULL);
    CHECK(accepted >= 0 && write(accepted, "hello", 5) == 5);
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 5 && memcmp(bytes, "hello", 5) == 0);
    CHECK(close(fd) == 0 && close(accepted) == 0 && close(listening) == 0);
}

static void connects(char **words) {
    char bytes[8];
    int port = atoi(words[1]);
    for (int i = 0; i < 20; i++) {
        int fd = connected_by_ring(words[0], port);
        CHECK(fd >= 0);
        CHECK(number_of(fd, getpeername) == (unsigned)port && number_of(fd, getsockname) > 0);
        CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == 5);
        CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 5 && memcmp(bytes, "hello", 5) == 0);
        ask(fd);
        if (i > 0)
            CHECK(operate(IORING_OP_CLOSE, fd, NULL, 0) == 0);
    }
    CHECK(connected_by_ring(words[0], 7999) == -ECONNREFUSED);
    again(words[0], port);
    to_itself();
    /* Meanwhile the ring does other things, and it can be cancelled. */
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_aton(words[2], &nobody.sin_addr));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    submit_at(IORING_OP_CONNECT, 0, fd, &nobody, 0, sizeof nobody);
    CHECK(operate(IORING_OP_FSYNC, -1, NULL, 0) == -EBADF);
    submit(IORING_OP_ASYNC_CANCEL, 0, -1, NULL, 0);
    int results[2], done = 0;
    for (int i = 0; i < 2; i++) {
        CHECK(ENTER(0, 1, IORING_ENTER_GETEVENTS) == 0);
        results[i] = next();
        done += results[i] == -ECANCELED || results[i] == -EINTR;
    }
    CHECK(done == 1 && close(fd) == 0);
    say("connected");
}

enum { BULK = 24 << 20, PIECE = 100000 };

static int bulk_fd;

static char octet(size_t at) {
    return at * 31 + (at >> 12);
}

static void *receive_bulk(void *none) {
    static char bytes[PIECE];
    make_ring(8);
    for (size_t at = 0; at < BULK;) {
        int got = operate(IORING_OP_RECV, bulk_fd, bytes, sizeof bytes);
        CHECK(got > 0);
        for (int i = 0; i < got; i++, at++)
            CHECK(bytes[i] == octet(at));
    }
    return NULL;
}

static void bulk(char **words) {
    static char bytes[PIECE];
    pthread_t other;
    bulk_fd = connected(words);
    CHECK(pthread_create(&other, NULL, receive_bulk, NULL) == 0);
    for (size_t at = 0; at < BULK;) {
        size_t len = BULK - at < sizeof bytes ? BULK - at : sizeof bytes;
        for (size_t i = 0; i < len; i++)
            bytes[i] = octet(at + i);
        for (size_t done = 0; done < len;) {
            int sent = operate(IORING_OP_SEND, bulk_fd, bytes + done, len - done);
            CHECK(sent > 0);
            done += sent;
        }
        at += len;
    }
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(operate(IORING_OP_SHUTDOWN, bulk_fd, NULL, SHUT_WR) == 0);
    CHECK(operate(IORING_OP_RECV, bulk_fd, bytes, sizeof bytes) == 0);
    say("all right");
}

static void send_much(int fd, size_t len) {
    static char bytes[PIECE];
    while (len > 0) {
        int sent = operate(IORING_OP_SEND, fd, bytes, len < sizeof bytes ? len : sizeof bytes);
        CHECK(sent > 0);
        len -= sent;
    }
}

/* The peer resets the first, reads of the second that it is reset, and how much comes by the others. */
static void in_every_way(char **words) {
    char bytes[8];
    int reset = connected(words);
    CHECK(operate(IORING_OP_SEND, reset, "hello", 5) == 5);
    CHECK(operate(IORING_OP_RECV, reset, bytes, 1) == 1 && bytes[0] == 'r');
    CHECK(operate(IORING_OP_RECV, reset, bytes, 1) == -ECONNRESET);
    CHECK(close(reset) == 0);
    int unread = connected(words);
    CHECK(operate(IORING_OP_RECV, unread, bytes, 1) == 1);
    CHECK(close(unread) == 0);
    int closed = connected(words);
    send_much(closed, 1000000);
    CHECK(operate(IORING_OP_CLOSE, closed, NULL, 0) == 0);
    /* By who becomes another program, and who exits. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        send_much(connected(words), 3000000);
        execl("/bin/true", "true", NULL);
        CHECK(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    send_much(connected(words), 2000000);
    exit(0);
}

/* Bytes come back, on two connections at once. */
static void accepted(const char *address) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(7300)};
    CHECK(inet_aton(address, &name.sin_addr));
    int listening = socket(AF_INET, SOCK_STREAM, 0), fds[2];
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 2) == 0);
    say("listens");
    for (int i = 0; i < 2; i++) {
        fds[i] = accept(listening, NULL, NULL);
        CHECK(fds[i] >= 0);
    }
    for (int open = 2, i = 0; open > 0; i = !i) {
        char bytes[8];
        if (fds[i] < 0)
            continue;
        int got = operate(IORING_OP_RECV, fds[i], bytes, sizeof bytes);
        CHECK(got >= 0);
        if (got > 0) {
            CHECK(operate(IORING_OP_SEND, fds[i], bytes, got) == got);
        } else {
            CHECK(operate(IORING_OP_CLOSE, fds[i], NULL, 0) == 0);
            fds[i] = -1, open--;
        }
    }
    say("all right");
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
    make_ring(8);
    CHECK(operate(IORING_OP_NOP, -1, NULL, 0) == 0);
    ask(fd);
    say("all right");
}

static int listens_at(const char *address) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(7300)};
    CHECK(inet_aton(address, &name.sin_addr));
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 64) == 0);
    return listening;
}

enum { CLIENTS = 40 };

static int listens_by_ring(const char *address) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(7300)};
    CHECK(inet_aton(address, &name.sin_addr));
    submit_at(IORING_OP_SOCKET, 0, AF_INET, NULL, 0, SOCK_STREAM);
    int listening = finish();
    CHECK(listening >= 0);
    submit_at(56, 0, listening, &name, 0, sizeof name); /* IORING_OP_BIND */
    CHECK(finish() == 0);
    submit_at(56, 0, listening, &name, 0, sizeof name);
    CHECK(finish() == -EINVAL);
    CHECK(operate(57, listening, NULL, 64) == 0); /* IORING_OP_LISTEN */
    return listening;
}

/* Of many that come at once. */
static void at_address(const char *address) {
    int listening = listens_by_ring(address), fds[CLIENTS + 2];
    struct sockaddr_in peer, same;
    socklen_t len, same_len = sizeof same;
    say("listens");
    for (int i = 0; i < CLIENTS + 1; i++) {
        len = sizeof peer;
        memset(&peer, 0, sizeof peer);
        submit_at(IORING_OP_ACCEPT, 0, listening, &peer, 0, (unsigned long)&len);
        fds[i] = finish();
        CHECK(fds[i] >= 0 && len == sizeof peer && peer.sin_family == AF_INET && peer.sin_port != 0);
        CHECK(getpeername(fds[i], (struct sockaddr *)&same, &same_len) == 0);
        CHECK(memcmp(&same, &peer, sizeof same) == 0 && number_of(fds[i], getsockname) == 7300);
    }
    len = sizeof peer;
    CHECK(number_of(listening, getsockname) == 7300);
    fds[CLIENTS + 1] = accept(listening, (struct sockaddr *)&peer, &len);
    CHECK(fds[CLIENTS + 1] >= 0 && peer.sin_family == AF_INET && peer.sin_port != 0);
    for (int i = 0; i < CLIENTS + 2; i++) {
        char bytes[5];
        CHECK(operate(IORING_OP_RECV, fds[i], bytes, sizeof bytes) == 5);
        CHECK(operate(IORING_OP_SEND, fds[i], bytes, sizeof bytes) == 5);
        CHECK(operate(IORING_OP_CLOSE, fds[i], NULL, 0) == 0);
    }
    /* Who is not accepted is reset, and the port is free. */
    submit(IORING_OP_POLL_ADD, 0, listening, NULL, 0);
    say("waits");
    CHECK(finish() > 0 && close(listening) == 0);
    CHECK(close(listens_at(address)) == 0);
    say("all right");
}

/* The next image has its own. */
static void accept_one(int listening) {
    char bytes[5];
    submit(IORING_OP_ACCEPT, 0, listening, NULL, 0);
    say("listens");
    int accepted = finish();
    CHECK(accepted >= 0 && operate(IORING_OP_RECV, accepted, bytes, sizeof bytes) == 5);
    CHECK(operate(IORING_OP_SEND, accepted, bytes, sizeof bytes) == 5);
    CHECK(close(accepted) == 0);
}

static void over_images(const char *program, const char *address) {
    char number[12];
    int fd = listens_at(address);
    accept_one(fd);
    snprintf(number, sizeof number, "%d", fd);
    execl(program, program, "next", number, NULL);
    CHECK(0);
}

/* The daemon ends meanwhile. */
static void blocked(const char *address) {
    int listening = listens_at(address);
    char byte;
    submit(IORING_OP_ACCEPT, 0, listening, NULL, 0);
    say("listens");
    int accepted = finish();
    CHECK(accepted >= 0);
    submit(IORING_OP_ACCEPT, 0, listening, NULL, 0);
    submit(IORING_OP_RECV, 0, accepted, &byte, 1);
    say("blocked");
    CHECK(ENTER(0, 2, IORING_ENTER_GETEVENTS) == 0);
    int one = next(), other = next();
    CHECK((one == -EINVAL && other == -ECONNRESET) || (one == -ECONNRESET && other == -EINVAL));
    say("ended");
}

/* Nobody answers, and then the daemon ends. */
static void opens(char **words) {
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    CHECK(inet_aton(words[0], &nobody.sin_addr));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    submit_at(IORING_OP_CONNECT, 0, fd, &nobody, 0, sizeof nobody);
    say("blocked");
    CHECK(finish() == -ECONNREFUSED && close(fd) == 0);
    say("ended");
}

enum { NAME = 22 };

/* What all can read. */
static char unix_text[1 << 20];
static size_t unix_len;

static void read_unix(void) {
    int file = open("/proc/net/unix", O_RDONLY);
    unix_len = 0;
    for (ssize_t got; (got = read(file, unix_text + unix_len, sizeof unix_text - unix_len)) > 0;)
        unix_len += got;
    close(file);
}

/* A name of the library's there, where octets 0 are '@'. */
static const char *name_of_stand_in(void) {
    read_unix();
    return memmem(unix_text, unix_len, "@\x9dS", 3);
}

/* Connected to it, whichever of the '@' are octets 0; below 0 nobody listens there. */
static int come_to_stand_in(void) {
    struct sockaddr_un given = {.sun_family = AF_UNIX}, name;
    socklen_t len = offsetof(struct sockaddr_un, sun_path) + NAME;
    CHECK(name_of_stand_in());
    memcpy(given.sun_path, name_of_stand_in(), NAME);
    int places[NAME], count = 0;
    for (int i = 1; i < NAME; i++)
        if (given.sun_path[i] == '@')
            places[count++] = i;
    for (unsigned as_they_are = 0; as_they_are < 1u << count; as_they_are++) {
        name = given;
        name.sun_path[0] = 0;
        for (int i = 0; i < count; i++)
            if (!(as_they_are >> i & 1))
                name.sun_path[places[i]] = 0;
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(fd >= 0);
        if (connect(fd, (struct sockaddr *)&name, len) == 0)
            return fd;
        close(fd);
    }
    return -1;
}

/* The library goes on to connect what is given up, and another process comes to its stand-in. */
static void stolen(char **words) {
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    CHECK(inet_aton(words[0], &nobody.sin_addr));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    submit_at(IORING_OP_CONNECT, 0, fd, &nobody, 0, sizeof nobody);
    submit(IORING_OP_ASYNC_CANCEL, 0, -1, NULL, 0);
    for (int done = 0; done < 2; done++) {
        CHECK(ENTER(0, 1, IORING_ENTER_GETEVENTS) == 0);
        next();
    }
    CHECK(close(fd) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        say("comes");
        int other = come_to_stand_in();
        char bytes[5];
        if (other >= 0 && send(other, "hello", 5, MSG_NOSIGNAL) == 5 && recv(other, bytes, 5, MSG_WAITALL) == 5)
            say("stolen");
        else
            say("refused");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Another user's process is nobody whom the network has brought. */
static void strangers(const char *address) {
    int listening = listens_at(address);
    CHECK(operate(IORING_OP_FSYNC, listening, NULL, 0) == -EINVAL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(setuid(65534) == 0);
        CHECK(come_to_stand_in() >= 0);
        say("listens");
        pause();
    }
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    int accepted = accept(listening, (struct sockaddr *)&peer, &len);
    CHECK(accepted >= 0 && len == sizeof peer && peer.sin_family == AF_INET && peer.sin_port != 0);
    CHECK(number_of(accepted, getpeername) == ntohs(peer.sin_port));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    say("all right");
}

static void starved(const char *address) {
    struct rlimit before, none;
    int listening = listens_at(address);
    CHECK(operate(IORING_OP_FSYNC, listening, NULL, 0) == -EINVAL);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int free = dup(listening);
    CHECK(free >= 0 && close(free) == 0);
    none = before;
    none.rlim_cur = free;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    say("listens");
    await_signal(); /* it is there */
    poll(NULL, 0, 200);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(operate(IORING_OP_ACCEPT, listening, NULL, 0) >= 0);
    say("all right");
}

enum { NAMING = 4, EACH = 40, NAMED = 400 };

static int naming, named, expected;

/* Each has many entries that wait for a name. */
static void *name_peers(void *none) {
    struct sockaddr_in peers[EACH];
    socklen_t lens[EACH];
    make_ring_with(EACH, 1 << 12 | 1 << 13); /* IORING_SETUP_SINGLE_ISSUER, _DEFER_TASKRUN: done within calls */
    for (tag = 0; tag < EACH; tag++) {
        lens[tag] = sizeof peers[tag];
        submit_at(IORING_OP_ACCEPT, 0, naming, &peers[tag], 0, (unsigned long)&lens[tag]);
    }
    if (__atomic_add_fetch(&expected, 1, __ATOMIC_ACQ_REL) == NAMING)
        say("listens");
    for (;;) {
        CHECK(ENTER(0, 1, IORING_ENTER_GETEVENTS) == 0);
        while (__atomic_load_n(at(parameters.cq_off.tail), __ATOMIC_ACQUIRE) != *at(parameters.cq_off.head)) {
            int accepted = next();
            tag = done_tag;
            CHECK(accepted >= 0 && peers[tag].sin_family == AF_INET && peers[tag].sin_port != 0);
            CHECK(close(accepted) == 0);
            if (__atomic_add_fetch(&named, 1, __ATOMIC_ACQ_REL) == NAMED)
                say("all right");
            memset(&peers[tag], 0, sizeof peers[tag]);
            lens[tag] = sizeof peers[tag];
            submit_at(IORING_OP_ACCEPT, 0, naming, &peers[tag], 0, (unsigned long)&lens[tag]);
        }
    }
    return none;
}

static void names(const char *address) {
    pthread_t other;
    naming = listens_at(address);
    for (int i = 0; i < NAMING; i++)
        CHECK(pthread_create(&other, NULL, name_peers, NULL) == 0);
}

/* More than goes while one waits for a byte of it. */
static void slow(char **words) {
    int fd = connected(words), small = 4096;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    send_much(fd, 500000);
    exit(0);
}

static void unread(char **words) {
    int fd = connected(words);
    CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == 5);
    CHECK(shutdown(fd, SHUT_RD) == 0);
    CHECK(operate(IORING_OP_SEND, fd, "shut", 4) == 4);
    await_signal(); /* the peer has sent something */
    poll(NULL, 0, 200);
    CHECK(close(fd) == 0);
    say("closed");
}

static int copying;

static void *accept_always(void *none) {
    make_ring(8);
    for (;;) {
        int accepted = operate(IORING_OP_ACCEPT, copying, NULL, 0);
        CHECK(accepted >= 0 && close(accepted) == 0);
    }
    return none;
}

/* A stream of AF_UNIX, and not the listening stand-in, nor what it has accepted, which are known by its name. */
static int is_of_library(int fd, const char *listening) {
    struct stat status;
    char inode[16];
    unsigned type, state;
    if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode))
        return 0;
    snprintf(inode, sizeof inode, " %5lu", (unsigned long)status.st_ino);
    char *found = memmem(unix_text, unix_len, inode, strlen(inode));
    if (!found || found - unix_text < 8 || sscanf(found - 7, "%x %x", &type, &state) != 2 || type != SOCK_STREAM)
        return 0;
    found += strlen(inode);
    return *found == '\n' || (*found == ' ' && memcmp(found + 1, listening, NAME) != 0);
}

/* None of them has an end of the library's. */
static void copies(const char *address) {
    pthread_t other;
    char name[NAME];
    copying = listens_at(address);
    CHECK(operate(IORING_OP_FSYNC, copying, NULL, 0) == -EINVAL && name_of_stand_in());
    memcpy(name, name_of_stand_in(), NAME);
    CHECK(pthread_create(&other, NULL, accept_always, NULL) == 0);
    say("listens");
    for (int i = 0; i < 400; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            read_unix();
            for (int fd = 3; fd < 8400; fd++)
                CHECK(!is_of_library(fd, name));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    say("all right");
}

/* All numbers that seem to be free, and are not. */
static void taken(char **words) {
    int fd = connected(words), null = open("/dev/null", O_RDWR), numbers[64], count = 0;
    char bytes[8];
    CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == 5);
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 5);
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(all)) != NULL;)
        if (entry->d_name[0] != '.' && fcntl(atoi(entry->d_name), F_GETFD) < 0 && count < 64)
            numbers[count++] = atoi(entry->d_name);
    closedir(all);
    CHECK(count > 0);
    for (int i = 0; i < count; i++)
        CHECK(dup2(null, numbers[i]) == numbers[i]);
    for (int i = 0; i < 20; i++) {
        CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == 5);
        CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 5 && memcmp(bytes, "hello", 5) == 0);
    }
    CHECK(close(fd) == 0);
    fd = connected(words);
    CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == 5);
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 5);
    for (int i = 0; i < count; i++)
        CHECK(write(numbers[i], "x", 1) == 1);
    say("all right");
}

/* The child has its own ring, and goes on when its parent's descriptor is closed. */
static void prefork(const char *address) {
    int listening = listens_at(address);
    CHECK(operate(IORING_OP_FSYNC, listening, NULL, 0) == -EINVAL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        make_ring(8);
        char bytes[5];
        for (int i = 0; i < 2; i++) {
            submit(IORING_OP_ACCEPT, 0, listening, NULL, 0);
            if (i == 0)
                say("listens");
            int accepted = finish();
            CHECK(accepted >= 0 && operate(IORING_OP_RECV, accepted, bytes, sizeof bytes) == 5);
            CHECK(operate(IORING_OP_SEND, accepted, bytes, sizeof bytes) == 5);
            CHECK(close(accepted) == 0);
        }
        exit(0);
    }
    CHECK(close(listening) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    say("all right");
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
    struct {
        unsigned long words[8];
    } region = {{0}};
    CHECK(REGISTER(34, &region, 1) == -1 && errno == EINVAL); /* IORING_REGISTER_MEM_REGION */
    CHECK(ENTER(0, 0, 1 << 6) == -1 && errno == EINVAL);      /* IORING_ENTER_EXT_ARG_REG */
    CHECK(ENTER(0, 0, 1u << 31) == -1 && errno == EINVAL);
    struct io_uring_params wide = {.flags = 1 << 10}; /* IORING_SETUP_SQE128 */
    CHECK(SETUP(8, &wide) >= 0);
    int mine = ring;
    ring = open("/dev/null", O_RDONLY);
    CHECK(ENTER(1, 0, 0) == -1 && errno == EOPNOTSUPP);
    ring = mine;
    say("refused");
}

/* What is given to who waits for nothing is not looked at. */
static void arguments(void) {
    void *rubbish = (void *)0x7000000000;
    sigset_t none;
    sigemptyset(&none);
    CHECK(ENTER_WITH(ring, 0, 0, 0, rubbish, 8) == 0);
    CHECK(ENTER_WITH(ring, 0, 0, IORING_ENTER_EXT_ARG, rubbish, 24) == 0);
    CHECK(ENTER_WITH(ring, 0, 0, IORING_ENTER_GETEVENTS, &none, 8) == 0);
    CHECK(ENTER_WITH(ring, 0, 0, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, rubbish, 8) == -1 && errno == EINVAL);
    struct {
        unsigned long mask;
        unsigned mask_len, least;
        struct __kernel_timespec *time;
    } wait = {(unsigned long)&none, 8, 0, NULL};
    CHECK(ENTER_WITH(ring, 0, 0, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof wait) == 0);
    submit(IORING_OP_NOP, 0, -1, NULL, 0);
    CHECK(ENTER_WITH(ring, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof wait) == 0);
    wait.mask_len = 4;
    wait.mask = 0x7000000000; /* of a length that no mask has */
    CHECK(ENTER_WITH(ring, 0, 9, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof wait) == -1 &&
          errno == EINVAL);
    say("looked at");
}

/* A datagram that comes, and whose it is. */
struct letter {
    struct msghdr head;
    struct sockaddr_in name;
    struct iovec parts[2];
    char bytes[64];
    union {
        struct cmsghdr first;
        char bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
    } beside;
};

static void await_letter(int fd, struct letter *letter, unsigned long its_tag) {
    memset(letter, 0, sizeof *letter);
    letter->parts[0] = (struct iovec){letter->bytes, 3};
    letter->parts[1] = (struct iovec){letter->bytes + 3, sizeof letter->bytes - 3};
    letter->head = (struct msghdr){.msg_name = &letter->name,
                                   .msg_namelen = sizeof letter->name,
                                   .msg_iov = letter->parts,
                                   .msg_iovlen = 2,
                                   .msg_control = &letter->beside,
                                   .msg_controllen = sizeof letter->beside};
    tag = its_tag;
    submit(IORING_OP_RECVMSG, 0, fd, &letter->head, 1);
}

static int write_to(int fd, const char *text, struct sockaddr_in *to) {
    struct iovec part = {(char *)text, strlen(text)};
    struct msghdr head = {.msg_name = to, .msg_namelen = sizeof *to, .msg_iov = &part, .msg_iovlen = 1};
    tag = 0;
    return operate(IORING_OP_SENDMSG, fd, &head, 1);
}

static void *asks_and_ends(void *fd) {
    static struct letter letter;
    make_ring(4);
    await_letter(*(int *)fd, &letter, 1);
    return NULL;
}

/* Four sources at once, by four entries that wait. */
static void letters(int fd, struct sockaddr_in echo) {
    static struct letter letters[4];
    char text[32];
    int one = 1, port = ntohs(echo.sin_port), came = 0, gone = 0;
    CHECK(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof one) == 0);
    for (int i = 0; i < 4; i++)
        await_letter(fd, &letters[i], i + 1);
    for (int sent = 0; came < 400 || gone < 400;) { /* an echo may come before its sending is told */
        for (; sent < 400 && sent < came + 4; sent++) {
            echo.sin_port = htons(port + sent % 4);
            snprintf(text, sizeof text, "%d to %d", sent, port + sent % 4);
            struct iovec part = {text, strlen(text)};
            struct msghdr head = {.msg_name = &echo, .msg_namelen = sizeof echo, .msg_iov = &part, .msg_iovlen = 1};
            tag = 100;
            submit(IORING_OP_SENDMSG, 0, fd, &head, 1);
        }
        CHECK(ENTER(0, 1, IORING_ENTER_GETEVENTS) == 0);
        int result = next(), number, from;
        if (done_tag == 100) {
            CHECK(result > 5);
            gone++;
            continue;
        }
        struct letter *letter = &letters[done_tag - 1];
        CHECK(result > 5 && sscanf(letter->bytes, "%d to %d", &number, &from) == 2 && from == port + number % 4);
        CHECK(letter->head.msg_namelen == sizeof letter->name && letter->name.sin_family == AF_INET);
        CHECK(letter->name.sin_addr.s_addr == echo.sin_addr.s_addr && ntohs(letter->name.sin_port) == from);
        CHECK(letter->head.msg_controllen == sizeof letter->beside && letter->beside.first.cmsg_type == IP_PKTINFO);
        CHECK(letter->head.msg_flags == 0);
        came++;
        await_letter(fd, letter, done_tag);
    }
    /* Each of them by what it is known by. */
    for (int i = 4; i >= 1; i--) {
        tag = 200;
        submit(IORING_OP_ASYNC_CANCEL, 0, -1, (void *)(long)i, 0);
        for (int both = 0; both < 2; both++) {
            CHECK(ENTER(0, 1, IORING_ENTER_GETEVENTS) == 0);
            int result = next();
            CHECK(done_tag == 200 ? result == 0 : done_tag == (unsigned)i && result == -ECANCELED);
        }
    }
}

static void put(int operation, int flags, int fd, const void *bytes, unsigned len) {
    unsigned tail = *at(parameters.sq_off.tail), place = tail & *at(parameters.sq_off.ring_mask);
    memset(&entries[place], 0, sizeof entries[place]);
    entries[place].opcode = operation;
    entries[place].flags = flags;
    entries[place].fd = fd;
    entries[place].addr = (unsigned long)bytes;
    entries[place].len = len;
    at(parameters.sq_off.array)[place] = place;
    __atomic_store_n(at(parameters.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
}

/* The results of two linked entries. */
static void in_a_chain_are(int first, int second) {
    CHECK(ENTER(2, 2, IORING_ENTER_GETEVENTS) == 2);
    int result = next(), other = next();
    CHECK(result == first && other == second);
}

static void in_a_chain(int fd, struct sockaddr_in *echo) {
    char bytes[8];
    struct iovec part = {"linked", 6};
    struct msghdr head = {.msg_name = echo, .msg_namelen = sizeof *echo, .msg_iov = &part, .msg_iovlen = 1};
    put(IORING_OP_SENDMSG, IOSQE_IO_LINK, fd, &head, 1);
    put(IORING_OP_SENDMSG, 0, fd, &head, 1);
    in_a_chain_are(6, 6);
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 6 && recv(fd, bytes, sizeof bytes, 0) == 6);
    /* Neither is sent. */
    put(IORING_OP_SEND, IOSQE_IO_LINK, fd, "nowhere", 7);
    put(IORING_OP_SENDMSG, 0, fd, &head, 1);
    in_a_chain_are(-EDESTADDRREQ, -ECANCELED);
    put(IORING_OP_NOP, IOSQE_IO_LINK, -1, NULL, 0);
    put(IORING_OP_SENDMSG, 0, fd, &head, 1);
    in_a_chain_are(0, -EOPNOTSUPP);
    part = (struct iovec){"next", 4};
    CHECK(operate(IORING_OP_SENDMSG, fd, &head, 1) == 4 && recv(fd, bytes, sizeof bytes, 0) == 4);
}

/* Which neither stand in the way of calls nor of each other. */
static void odd_ones(int fd, struct sockaddr_in echo) {
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    struct letter letter;
    pthread_t thread;
    char bytes[8];
    int ring_before = ring;
    struct io_uring_params parameters_before = parameters;
    char *queues_before = queues;
    struct io_uring_sqe *entries_before = entries;
    tag = 3;
    CHECK(operate(IORING_OP_SEND, fd, "x", 1) == -EDESTADDRREQ);
    submit(IORING_OP_RECV, IOSQE_IO_LINK, fd, bytes, sizeof bytes);
    submit(IORING_OP_NOP, 0, -1, NULL, 0);
    CHECK(ENTER(0, 2, IORING_ENTER_GETEVENTS) == 0);
    int result = next(), other = next(); /* in either order */
    CHECK((result == 0 && other == -EOPNOTSUPP) || (result == -EOPNOTSUPP && other == 0));
    CHECK(operate(IORING_OP_READ, 12345, bytes, 1) == -EBADF);
    CHECK((submit(IORING_OP_SEND, 1 << 5, fd, NULL, 0), finish()) == -EOPNOTSUPP); /* IOSQE_BUFFER_SELECT */
    in_a_chain(fd, &echo);
    /* What is cancelled as a poll is none; and nothing comes to who is shut. */
    submit(IORING_OP_RECV, 0, fd, bytes, sizeof bytes);
    CHECK(operate(IORING_OP_POLL_REMOVE, -1, (void *)tag, 0) == -ENOENT);
    CHECK(sendto(fd, "ok", 2, 0, (struct sockaddr *)&echo, sizeof echo) == 2 && finish() == 2);
    int shut = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(write_to(shut, "shut", &echo) == 4 && recv(shut, bytes, sizeof bytes, 0) == 4);
    submit(IORING_OP_RECV, 0, shut, bytes, sizeof bytes);
    shutdown(shut, SHUT_RD); /* ENOTCONN, and shut for all that */
    CHECK(finish() == 0 && operate(IORING_OP_RECV, shut, bytes, sizeof bytes) == 0 && close(shut) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && operate(IORING_OP_RECV, fd, bytes, 1) == -EAGAIN);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    /* A poll, and a call that takes what there is. */
    submit(IORING_OP_POLL_ADD, 0, fd, NULL, 0);
    CHECK(sendto(fd, "poll", 4, 0, (struct sockaddr *)&echo, sizeof echo) == 4 && finish() == POLLIN);
    CHECK(recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &len) == 4 && from.sin_port == echo.sin_port);
    /* What is too long is cut, and said to be. */
    await_letter(fd, &letter, 5);
    letter.head.msg_iovlen = 0; /* has been read */
    char large[100] = "large";
    CHECK(sendto(fd, large, sizeof large, 0, (struct sockaddr *)&echo, sizeof echo) == sizeof large);
    CHECK(finish() == 64 && letter.head.msg_flags == MSG_TRUNC && memcmp(letter.bytes, large, 64) == 0);
    /* Memory that is gone by then. */
    char *gone = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    submit(IORING_OP_RECV, 0, fd, gone, 4096);
    CHECK(munmap(gone, 4096) == 0);
    CHECK(sendto(fd, "gone", 4, 0, (struct sockaddr *)&echo, sizeof echo) == 4 && finish() == -EFAULT);
    /* A thread that has ended, and a ring that is closed, have asked for nothing. */
    CHECK(pthread_create(&thread, NULL, asks_and_ends, &fd) == 0 && pthread_join(thread, NULL) == 0);
    make_ring(4);
    submit(IORING_OP_RECV, 0, fd, bytes, sizeof bytes);
    CHECK(close(ring) == 0);
    ring = ring_before;
    parameters = parameters_before;
    queues = queues_before;
    entries = entries_before;
    CHECK(sendto(fd, "left", 4, 0, (struct sockaddr *)&echo, sizeof echo) == 4);
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 4 && memcmp(bytes, "left", 4) == 0);
}

static int shared_ring, has_ended;

static void *submits_too(void *none) {
    while (!__atomic_load_n(&has_ended, __ATOMIC_ACQUIRE)) {
        CHECK(ENTER_AT(shared_ring, 1, 0, 0) >= 0);
        sched_yield(); /* else the other one waits long for its turn at the ring */
    }
    return none;
}

/* An entry that two threads submit is done once. */
static void by_two_threads(int fd, struct sockaddr_in *echo) {
    pthread_t thread;
    shared_ring = ring;
    CHECK(pthread_create(&thread, NULL, submits_too, NULL) == 0);
    for (int i = 0, back; i < 300; i++) {
        struct iovec part = {&i, sizeof i};
        struct msghdr head = {.msg_name = echo, .msg_namelen = sizeof *echo, .msg_iov = &part, .msg_iovlen = 1};
        put(IORING_OP_SENDMSG, 0, fd, &head, 1);
        CHECK(ENTER(1, 1, IORING_ENTER_GETEVENTS) >= 0 && next() == sizeof i);
        CHECK(recv(fd, &back, sizeof back, 0) == sizeof back && back == i);
    }
    __atomic_store_n(&has_ended, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void datagrams(char **words) {
    struct sockaddr_in echo = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(7400)};
    CHECK(inet_aton(words[0], &echo.sin_addr));
    /* One that is the kernel's until an entry sends, one that is bound to every address. */
    int fresh = socket(AF_INET, SOCK_DGRAM, 0), bound = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(write_to(fresh, "fresh", &echo) == 5 && recv(fresh, (char[8]){0}, 8, 0) == 5);
    letters(fresh, echo);
    CHECK(bind(bound, (struct sockaddr *)&own, sizeof own) == 0);
    letters(bound, echo);
    odd_ones(bound, echo);
    by_two_threads(bound, &echo);
    /* A peer from now on, and one operation that waits since before. */
    struct letter letter;
    await_letter(bound, &letter, 7);
    CHECK(connect(bound, (struct sockaddr *)&echo, sizeof echo) == 0 && send(bound, "connected", 9, 0) == 9);
    CHECK(finish() == 9 && letter.name.sin_port == echo.sin_port);
    say("all right");
}

static int control(int epoll, int operation, int fd, struct epoll_event *event) {
    submit_at(IORING_OP_EPOLL_CTL, 0, epoll, event, operation, fd);
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
    /* The kernel does not know what is in it. */
    CHECK(operate(59, epoll, &got, 1) == -EINVAL); /* IORING_OP_EPOLL_WAIT */
    struct {
        struct io_uring_probe head;
        struct io_uring_probe_op operations[64];
    } probe = {0};
    CHECK(REGISTER(IORING_REGISTER_PROBE, &probe, 64) == 0);
    CHECK(probe.operations[IORING_OP_EPOLL_CTL].flags == IO_URING_OP_SUPPORTED && probe.operations[59].flags == 0);
    /* What is not ours, too. */
    CHECK(pipe(pipes) == 0 && control(epoll, EPOLL_CTL_ADD, pipes[0], &event) == 0 && write(pipes[1], "x", 1) == 1);
    CHECK(epoll_wait(epoll, &got, 1, 15000) == 1 && got.data.u64 == 77);
    say("watched");
}

static int on_paths, ends;

/* A ring of another thread. */
static struct {
    struct io_uring_params parameters;
    int ring;
    char *queues;
    struct io_uring_sqe *entries;
} others;

static void lend(void) {
    others.parameters = parameters, others.ring = ring, others.queues = queues, others.entries = entries;
}

static void borrow(void) {
    parameters = others.parameters, ring = others.ring, queues = others.queues, entries = others.entries;
}

/* What is submitted is now one thing, now another; and more of it than there is. */
static void *scribble(void *none) {
    borrow();
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
        ENTER_AT(others.ring + 1 + i % 8, 1, 0, 0);
    return none;
}

static void threads(char **words) {
    pthread_t all[6];
    on_paths = connected(words);
    lend();
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

enum { ROUNDS = 300 };

static int raced, met;

/* Until so many have come. */
static void meet(int until) {
    __atomic_add_fetch(&met, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&met, __ATOMIC_ACQUIRE) < until)
        sched_yield();
}

static void *name_it(void *own) {
    if (!own)
        make_ring(8);
    for (int i = 0; i < ROUNDS; i++) {
        if (own)
            raced = listens();
        meet(4 * i + 2);
        CHECK(operate(IORING_OP_FSYNC, raced, NULL, 0) == -EINVAL);
        meet(4 * i + 4);
        if (own)
            CHECK(close(raced) == 0);
    }
    return NULL;
}

static void race(void) {
    pthread_t other;
    CHECK(pthread_create(&other, NULL, name_it, NULL) == 0);
    name_it(&other);
    CHECK(pthread_join(other, NULL) == 0);
    /* Those that come after them are closed as well. */
    for (int i = 0; i < ROUNDS; i++)
        CHECK(close(listens()) == 0);
    say("all right");
}

/* Is hardly ever elsewhere than in the library's look at what waits, which is much. */
static void *enter_always(void *none) {
    make_ring(4096);
    for (unsigned i = 0; i < parameters.sq_entries; i++)
        at(parameters.sq_off.array)[i] = i;
    lend();
    meet(2);
    while (!__atomic_load_n(&ends, __ATOMIC_RELAXED)) {
        unsigned head = __atomic_load_n(at(parameters.sq_off.head), __ATOMIC_ACQUIRE);
        __atomic_store_n(at(parameters.sq_off.tail), head + parameters.sq_entries, __ATOMIC_RELEASE);
        CHECK(ENTER(1, 0, 0) == 1);
        unsigned done = __atomic_load_n(at(parameters.cq_off.tail), __ATOMIC_ACQUIRE);
        __atomic_store_n(at(parameters.cq_off.head), done, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void drop_ring(void) {
    CHECK(munmap(queues, queues_len()) == 0);
    CHECK(munmap(entries, parameters.sq_entries * sizeof *entries) == 0);
    CHECK(close(ring) == 0);
}

static int mappings_of_rings(void) {
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "[io_uring]") != NULL;
    fclose(maps);
    return count;
}

static void forks(void) {
    pthread_t other;
    CHECK(pthread_create(&other, NULL, enter_always, NULL) == 0);
    meet(2);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(operate(IORING_OP_NOP, -1, NULL, 0) == 0);
            drop_ring();
            borrow();
            drop_ring();
            CHECK(mappings_of_rings() == 0);
            make_ring(8);
            CHECK(operate(IORING_OP_NOP, -1, NULL, 0) == 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    __atomic_store_n(&ends, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(operate(IORING_OP_NOP, -1, NULL, 0) == 0);
    say("all right");
}

/* From a port that `bind` was asked for, or from any. */
static void after_failure(const char *address, int port) {
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(7999)}, name, own = {.sin_family = AF_INET};
    socklen_t len = sizeof name;
    CHECK(inet_aton(address, &nobody.sin_addr));
    int fd = socket(AF_INET, SOCK_STREAM, 0), listening = listens();
    own.sin_port = htons(port);
    CHECK(port == 0 || bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(connect(fd, (struct sockaddr *)&nobody, sizeof nobody) == -1 && errno == ECONNREFUSED);
    CHECK(operate(IORING_OP_FSYNC, listening, NULL, 0) == -EINVAL); /* the kernel's now */
    CHECK(getsockname(listening, (struct sockaddr *)&name, &len) == 0);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    submit_at(IORING_OP_CONNECT, 0, fd, &name, 0, sizeof name);
    CHECK(finish() == 0);
    int accepted = accept(listening, (struct sockaddr *)&name, &len);
    CHECK(accepted >= 0 && (port == 0 || ntohs(name.sin_port) == port));
    char bytes[5];
    CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == 5 && recv(accepted, bytes, 5, MSG_WAITALL) == 5);
    CHECK(close(fd) == 0 && close(accepted) == 0 && close(listening) == 0);
}

/* The next image's ring names what this one has listened on. */
static void in_next_image(const char *program) {
    char number[12];
    int fd = listens();
    CHECK(listen(fd, 3) == 0);
    snprintf(number, sizeof number, "%d", fd);
    execl(program, program, "inherited", number, NULL);
    CHECK(0);
}

/* Each operation is one datagram, an empty one too; calls on the socket go on beside. */
static void parcels(char **words) {
    static char large[60000], back[65536];
    char bytes[16];
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(inet_aton(words[0], &peer.sin_addr) && connect(fd, (struct sockaddr *)&peer, sizeof peer) == 0);
    CHECK(operate(IORING_OP_SEND, fd, "one", 3) == 3);
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 3 && memcmp(bytes, "one", 3) == 0);
    CHECK(number_of(fd, getpeername) == (unsigned)atoi(words[1]) && number_of(fd, getsockname) > 0);
    CHECK(operate(IORING_OP_SEND, fd, "ab", 2) == 2 && operate(IORING_OP_SEND, fd, "cde", 3) == 3);
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 2);
    CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 3);
    CHECK(operate(IORING_OP_SEND, fd, bytes, 0) == 0 && operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == 0);
    submit(IORING_OP_RECV, 0, fd, bytes, sizeof bytes);
    CHECK(send(fd, "by a call", 9, 0) == 9 && finish() == 9);
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = i % 251;
    CHECK(operate(IORING_OP_SEND, fd, large, sizeof large) == sizeof large);
    CHECK(recv(fd, back, sizeof back, 0) == sizeof large && memcmp(back, large, sizeof large) == 0);
    for (int i = 0; i < 200; i++) {
        CHECK(operate(IORING_OP_SEND, fd, &i, sizeof i) == sizeof i);
        CHECK(operate(IORING_OP_RECV, fd, bytes, sizeof bytes) == sizeof i && memcmp(bytes, &i, sizeof i) == 0);
    }
    CHECK(operate(IORING_OP_SEND, fd, "last", 4) == 4);
    say("all right");
    exit(0);
}

/* What a thread sleeps in, and what came of it. */
struct sleeper {
    pthread_t thread;
    pid_t id;
    int fd;
    char bytes[8];
    int got;
};

static void *receives(void *own) {
    struct sleeper *sleeper = own;
    __atomic_store_n(&sleeper->id, gettid(), __ATOMIC_RELEASE);
    sleeper->got = recv(sleeper->fd, sleeper->bytes, 5, MSG_WAITALL);
    return NULL;
}

static void *polls(void *own) {
    struct sleeper *sleeper = own;
    struct pollfd entry = {.fd = sleeper->fd, .events = POLLIN};
    __atomic_store_n(&sleeper->id, gettid(), __ATOMIC_RELEASE);
    sleeper->got = poll(&entry, 1, -1) == 1 && entry.revents == POLLIN ? read(sleeper->fd, sleeper->bytes, 8) : -1;
    return NULL;
}

static void *accepts(void *own) {
    struct sleeper *sleeper = own;
    __atomic_store_n(&sleeper->id, gettid(), __ATOMIC_RELEASE);
    sleeper->got = accept(sleeper->fd, NULL, NULL);
    return NULL;
}

/* A thread that does so, and sleeps. */
static void put_to_sleep(struct sleeper *sleeper, int fd, void *(*in)(void *)) {
    char path[64], state = 'R';
    memset(sleeper, 0, sizeof *sleeper);
    sleeper->fd = fd;
    CHECK(pthread_create(&sleeper->thread, NULL, in, sleeper) == 0);
    pid_t id;
    while ((id = __atomic_load_n(&sleeper->id, __ATOMIC_ACQUIRE)) == 0)
        sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    while (state != 'S') {
        FILE *stat = fopen(path, "r");
        CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && fclose(stat) == 0);
    }
}

static void woken(struct sleeper *sleeper, int got, const char *bytes) {
    CHECK(pthread_join(sleeper->thread, NULL) == 0 && sleeper->got == got);
    CHECK(memcmp(sleeper->bytes, bytes, strlen(bytes)) == 0);
}

static void asleep(char **words) {
    struct sleeper one, other;
    for (int i = 0; i < 20; i++) {
        int fd = connected(words);
        put_to_sleep(&one, fd, i % 2 ? receives : polls);
        CHECK(operate(IORING_OP_SEND, fd, "hello", 5) == 5);
        woken(&one, 5, "hello");
        ask(fd);
        close(fd);
    }
    int listening = listens();
    put_to_sleep(&one, listening, accepts);
    put_to_sleep(&other, listening, accepts);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(number_of(listening, getsockname))};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    submit(IORING_OP_ACCEPT, 0, listening, NULL, 0);
    int clients[3];
    for (int i = 0; i < 3; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(clients[i], (struct sockaddr *)&name, sizeof name) == 0);
    }
    int accepted = finish();
    CHECK(accepted >= 0);
    CHECK(pthread_join(one.thread, NULL) == 0 && one.got >= 0 && one.got != accepted);
    CHECK(pthread_join(other.thread, NULL) == 0 && other.got >= 0 && other.got != accepted);
    say("all woken");
}

static void inherited(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    CHECK(operate(IORING_OP_FSYNC, fd, NULL, 0) == -EINVAL);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_LISTEN);
    CHECK(info.tcpi_sacked == 3); /* how many may wait */
    say("listens");
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
    sigset_t told;
    sigemptyset(&told);
    sigaddset(&told, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &told, NULL) == 0);
    make_ring(8);
    if (!strcmp(words[1], "serve") || !strcmp(words[1], "fixed"))
        serve(words[1][0] == 'f');
    else if (!strcmp(words[1], "connected"))
        on_connected(words + 2);
    else if (!strcmp(words[1], "connects"))
        connects(words + 2);
    else if (!strcmp(words[1], "parcels"))
        parcels(words + 2);
    else if (!strcmp(words[1], "bulk"))
        bulk(words + 2);
    else if (!strcmp(words[1], "ends"))
        in_every_way(words + 2);
    else if (!strcmp(words[1], "accepted"))
        accepted(words[2]);
    else if (!strcmp(words[1], "file"))
        beside_file(words[2], words + 3);
    else if (!strcmp(words[1], "child"))
        in_child(words + 2);
    else if (!strcmp(words[1], "bound"))
        at_address(words[2]);
    else if (!strcmp(words[1], "images"))
        over_images(words[0], words[2]);
    else if (!strcmp(words[1], "next")) {
        accept_one(atoi(words[2]));
        say("all right");
    } else if (!strcmp(words[1], "blocked"))
        blocked(words[2]);
    else if (!strcmp(words[1], "opens"))
        opens(words + 2);
    else if (!strcmp(words[1], "stolen"))
        stolen(words + 2);
    else if (!strcmp(words[1], "strangers"))
        strangers(words[2]);
    else if (!strcmp(words[1], "starved"))
        starved(words[2]);
    else if (!strcmp(words[1], "names"))
        names(words[2]);
    else if (!strcmp(words[1], "slow"))
        slow(words + 2);
    else if (!strcmp(words[1], "unread"))
        unread(words + 2);
    else if (!strcmp(words[1], "copies"))
        copies(words[2]);
    else if (!strcmp(words[1], "taken"))
        taken(words + 2);
    else if (!strcmp(words[1], "prefork"))
        prefork(words[2]);
    else if (!strcmp(words[1], "datagrams"))
        datagrams(words + 2);
    else if (!strcmp(words[1], "asleep"))
        asleep(words + 2);
    else if (!strcmp(words[1], "epoll"))
        watched(words + 2);
    else if (!strcmp(words[1], "threads"))
        threads(words + 2);
    else if (!strcmp(words[1], "race"))
        race();
    else if (!strcmp(words[1], "forks"))
        forks();
    else if (!strcmp(words[1], "failed")) {
        after_failure(words[2], 0);
        after_failure(words[2], 7600);
        say("all right");
    } else if (!strcmp(words[1], "arguments"))
        arguments();
    else if (!strcmp(words[1], "image"))
        in_next_image(words[0]);
    else if (!strcmp(words[1], "inherited"))
        inherited(atoi(words[2]));
    else if (!strcmp(words[1], "library"))
        library();
    else
        refusals();
    pause();
}
