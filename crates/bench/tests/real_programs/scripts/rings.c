/* A server that has nothing but io_uring: it accepts, receives and sends by a ring; a plain client beside it. Says what
 * came back. Without liburing's headers, which are a package apart. */
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(holds)                                                                                                   \
    if (!(holds)) {                                                                                                    \
        fprintf(stderr, "line %d: ", __LINE__);                                                                        \
        perror(#holds);                                                                                                \
        exit(1);                                                                                                       \
    }

static struct io_uring_params parameters;
static int ring;
static char *queues;
static struct io_uring_sqe *entries;

static unsigned *at(unsigned offset) {
    return (unsigned *)(queues + offset);
}

/* One operation, to its end. */
static int operate(int operation, int fd, const void *bytes, unsigned len) {
    unsigned tail = *at(parameters.sq_off.tail), place = tail & *at(parameters.sq_off.ring_mask);
    struct io_uring_sqe *entry = &entries[place];
    memset(entry, 0, sizeof *entry);
    entry->opcode = operation;
    entry->fd = fd;
    entry->addr = (unsigned long)bytes;
    entry->len = len;
    at(parameters.sq_off.array)[place] = place;
    __atomic_store_n(at(parameters.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    unsigned head = *at(parameters.cq_off.head);
    CHECK(__atomic_load_n(at(parameters.cq_off.tail), __ATOMIC_ACQUIRE) == head + 1);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(queues + parameters.cq_off.cqes);
    int result = done[head & *at(parameters.cq_off.ring_mask)].res;
    __atomic_store_n(at(parameters.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return result;
}

int main(void) {
    ring = syscall(SYS_io_uring_setup, 8, &parameters);
    CHECK(ring >= 0 && parameters.features & IORING_FEAT_SINGLE_MMAP);
    size_t len = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    queues = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    CHECK(queues != MAP_FAILED);
    entries = mmap(NULL, parameters.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                   IORING_OFF_SQES);
    CHECK(entries != MAP_FAILED);

    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t name_len = sizeof name;
    int listening = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 1) == 0);
    CHECK(getsockname(listening, (struct sockaddr *)&name, &name_len) == 0);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    int accepted = operate(IORING_OP_ACCEPT, listening, NULL, 0);
    CHECK(accepted >= 0);
    CHECK(write(client, "hello", 5) == 5);
    char bytes[8];
    CHECK(operate(IORING_OP_RECV, accepted, bytes, sizeof bytes) == 5);
    CHECK(operate(IORING_OP_SEND, accepted, bytes, 5) == 5);
    char back[8] = "";
    CHECK(read(client, back, sizeof back) == 5);
    printf("back: %s\n", back);
    fflush(stdout);
    pause();
}
